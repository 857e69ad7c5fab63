"""Bytes of clients to requests and back. Nothing here knows of models or imports another wing."""
