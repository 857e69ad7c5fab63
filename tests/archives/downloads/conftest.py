"""For the tests of downloads: a model store, and a web server on the loopback."""

from tests.core.archive.conftest import model_store, web

__all__ = ["model_store", "web"]
