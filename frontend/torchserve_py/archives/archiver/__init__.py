"""`torch-model-archiver`, and TorchServe's Python API for it, `model_archiver`: models into archives."""
