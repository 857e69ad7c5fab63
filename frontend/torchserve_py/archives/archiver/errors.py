"""Why an archive is not made."""


class PackError(Exception):
    """An archive cannot be made of what was given. In TorchServe's Python API: `ModelArchiverError`."""
