"""For the tests of archives: a small model to pack."""

from tests.core.archive.conftest import model_store, pack_model, sources, temp_dir

__all__ = ["model_store", "pack_model", "sources", "temp_dir"]
