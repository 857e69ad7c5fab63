"""`ModelArchiverError`: the archive cannot be made of what was given."""

from torchserve_py.archives.archiver.errors import PackError as ModelArchiverError

__all__ = ["ModelArchiverError"]
