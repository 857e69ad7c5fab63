"""Bytes of clients to requests and back. Nothing here knows models, and nothing here imports another room."""
