"""Sends each log to its file and to standard output, with TorchServe's names, by a thread of its own."""
