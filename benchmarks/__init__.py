"""Measures this server beside the real TorchServe 0.12, same machine, same run. Begin at compare.py."""
