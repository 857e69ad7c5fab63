"""`ModelArchiverError`: the archive cannot be made of what was given."""

from torchserve_py.archive.errors import PackError as ModelArchiverError

__all__ = ["ModelArchiverError"]
