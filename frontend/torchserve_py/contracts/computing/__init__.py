"""In which types, and with which layout, `BaseHandler` computes: what `model-config.yaml` says of it."""
