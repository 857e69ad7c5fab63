"""What can go wrong with a model that somebody names or registers. `str()` is the message that TorchServe clients know.

The doors give each class its status and `type`; nothing here knows of HTTP.
"""


class ModelError(Exception):
    """Any of these."""


class ModelNotFound(ModelError):
    """No model of that name is registered."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Model not found: {name}")


class ModelVersionNotFound(ModelError):
    """The model is registered, but not in that version."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"Model version: {version} does not exist for model: {name}")


class DefaultVersionNotFound(ModelVersionNotFound):
    """A version that is not registered was to become the default; TorchServe words this one differently."""

    def __init__(self, name: str, version: str) -> None:
        ModelError.__init__(self, f"Model version {version} does not exist for model {name}")


class InvalidModel(ModelError):
    """What was fetched is not a model that can be served; the message says why."""


class InstallationFailed(ModelError):
    """The Python packages that a model asks for could not be installed; the message says which step failed."""


class DownloadFailed(ModelError):
    """The archive could not be fetched."""

    def __init__(self, url: str) -> None:
        super().__init__(f"Failed to download archive from: {url}")


class ArchiveNotFound(ModelError):
    """The url names nothing that may be served; made by one of the class methods, each a reason of its own."""

    @classmethod
    def at(cls, url: str) -> "ArchiveNotFound":
        """Nothing is there."""
        return cls(f"Model not found at: {url}")

    @classmethod
    def relative_path(cls, url: str) -> "ArchiveNotFound":
        """The url contains `..`."""
        return cls(f"Relative path is not allowed in url: {url}")

    @classmethod
    def empty_url(cls) -> "ArchiveNotFound":
        """The url is the empty text."""
        return cls("empty url")

    @classmethod
    def no_model_store(cls) -> "ArchiveNotFound":
        """A file of the model store is named, but there is no model store."""
        return cls("Model store has not been configured.")

    @classmethod
    def not_allowed(cls, url: str) -> "ArchiveNotFound":
        """No pattern of `allowed_urls` matches."""
        return cls(f"Given URL {url} does not match any allowed URL(s)")


class ArchiveExists(ModelError):
    """The url is to be downloaded onto a file that the model store already has."""

    def __init__(self, file: str) -> None:
        super().__init__(f"Model file already exists {file}")


class ArchiveUnreadable(ModelError):
    """The archive is there but reading or unpacking it failed."""

    def __init__(self, url: str) -> None:
        super().__init__(f"Failed to save model: {url}")


class VersionConflict(ModelError):
    """That version of that model is registered already."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"Model version {version} is already registered for model {name}")


class DefaultVersionInUse(ModelError):
    """The default version cannot go while the model has others."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Cannot remove default version for model {name}")


class UnregisterTimeout(ModelError):
    """The workers of a model did not stop in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Timed out while cleaning resources: {name}")


class WorkersFailed(ModelError):
    """The workers that a synchronous call asked for did not start.

    `status` is what the caller is told: 507 if the model did not fit into memory, else 500. `version` is the one that
    the call named, if it named one.
    """

    def __init__(self, name: str, version: str | None, status: int = 500) -> None:
        super().__init__(f"Failed to start workers for model {name} version: {version or 'null'}")
        self.status = status


class NotEnoughDevices(ModelError):
    """One worker of the model is to be spread over more GPUs than the server may use."""

    def __init__(self, name: str, parallel_level: int) -> None:
        super().__init__(f"No enough gpu devices for model:{name} parallelLevel:{parallel_level}")


class NoDescribeWorker(ModelError):
    """A model was asked to describe itself, but has no worker."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'Model "{name}" has no worker to serve describe request. Please use scale workers API to add workers.'
        )


class BadParameter(ModelError):
    """A parameter of a management call is missing or wrong; the message names it."""
