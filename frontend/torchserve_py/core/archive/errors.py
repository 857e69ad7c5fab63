"""Errors of archives and model folders, each with TorchServe's status, type and exact message.

`str(error)` is TorchServe's message, followed by the detail where there is more to say than TorchServe said.
"""

from pathlib import Path
from typing import ClassVar

from torchserve_py.base.url_secrets import without_secrets


class StatusError(Exception):
    """An error that TorchServe's API tells with a status and a type.

    `message` is TorchServe's message alone; `detail` says what exactly was wrong and what would be right.
    `status` is the HTTP status and `error_type` the `type` of the error body that TorchServe answers.
    """

    status: ClassVar[int]
    error_type: ClassVar[str]

    def __init__(self, message: str, detail: str = "") -> None:
        message, detail = without_secrets(message), without_secrets(detail)
        separator = " " if message.endswith(".") else ": "
        super().__init__(f"{message}{separator}{detail}" if detail else message)
        self.message = message
        self.detail = detail


class ArchiveError(StatusError):
    """A model could not be found, fetched, unpacked or understood."""


class ArchiveNotFound(ArchiveError):
    """There is nothing at the given location, or the location is not one that may be used."""

    status = 404
    error_type = "ModelNotFoundException"


class InvalidArchive(ArchiveError):
    """The archive was read, but its manifest or its files do not make a model."""

    status = 400
    error_type = "InvalidModelException"


class DownloadError(ArchiveError):
    """An archive could not be downloaded."""

    status = 400
    error_type = "DownloadArchiveException"

    def __init__(self, url: str, detail: str = "") -> None:
        super().__init__(f"Failed to download archive from: {url}", detail)


class ArchiveExists(ArchiveError):
    """A download would replace a file of the model store."""

    status = 500
    error_type = "InternalServerException"

    def __init__(self, file: Path, detail: str = "") -> None:
        super().__init__(f"Model file already exists {file.name}", detail)
        self.file = file


class UnreadableArchive(ArchiveError):
    """The archive is broken or truncated, is no archive at all, or could not be written out."""

    status = 500
    error_type = "InternalServerException"

    def __init__(self, url: str, detail: str = "") -> None:
        super().__init__(f"Failed to save model: {url}", detail)


class UnsafeArchive(UnreadableArchive):
    """The archive would write outside its folder, holds links or devices, or unpacks to more than the limits allow."""
