"""The parts of an archive's manifest, under TorchServe's names."""
