"""Errors of operations on models. `str()` is the message that TorchServe's clients know.

The endpoints map each class to a status and a `type`; this module does not depend on HTTP. Errors of archives are in
`torchserve_py.core.archive.errors`; the registry passes them on unchanged.
"""

_NOT_GIVEN = "(none was given)"


class ModelError(Exception):
    """Base class of the errors in this module."""


class ModelNotFound(ModelError):
    """No model of that name is registered; ``why`` says more."""

    def __init__(self, name: str, why: str = "") -> None:
        super().__init__(f"Model not found: {name or _NOT_GIVEN}{why and f'. {why}'}")
        self.name = name


class ModelVersionNotFound(ModelError):
    """The model is registered, but not in that version; ``why`` says more."""

    def __init__(self, name: str, version: str, why: str = "") -> None:
        super().__init__(f"Model version: {version} does not exist for model: {name}{why and f'. {why}'}")
        self.name = name
        self.version = version


class DefaultVersionNotFound(ModelVersionNotFound):
    """A call names an unregistered version as the default; TorchServe has a message of its own for this error."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self.args = (f"Model version {version or _NOT_GIVEN} does not exist for model {name}",)


class ModelAwaited(ModelNotFound):
    """The fleet serves that model or version, and this server does not yet, or cannot; the message says which."""

    def __init__(self, name: str, version: str | None, why: str) -> None:
        super().__init__(name)
        named = f'Model "{name}"' if version is None else f'Model "{name}" version {version}'
        self.args = (f"{named} is not loaded on this server: {why}",)


class ModelGone(ModelNotFound):
    """The model was unregistered while a call waited for its workers."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name)
        self.args = (f'Model "{name}" version {version} was unregistered while its workers started.',)


class VersionNotReady(ModelError):
    """A version without a ready worker would get requests that another version answers now."""

    def __init__(self, name: str, version: str, why: str, answering: str) -> None:
        super().__init__(
            f"Version {version} of model {name} has no ready worker ({why}), and version {answering} answers requests"
            " now. Nothing has changed. Wait until it is ready, or add force=true to let requests fail meanwhile."
        )


class InvalidModel(ModelError):
    """The files are not a model that can be served; the message says why."""


class DependencyError(ModelError):
    """The packages that a model requires could not be installed."""


class ShuttingDown(ModelError):
    """The server is shutting down, so the registration is refused or given up."""

    def __init__(self) -> None:
        super().__init__("The server is shutting down and accepts no new work.")


class VersionConflict(ModelError):
    """That version of that model is registered already."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"Model version {version} is already registered for model {name}")
        self.name = name
        self.version = version


class ArchiveInUse(ModelError):
    """A model that is being unregistered has the file that a registration would download again."""

    def __init__(self, file: str, name: str, version: str) -> None:
        super().__init__(
            f"{file} is in the model store until model {name} version {version} has answered its accepted requests: it"
            " is being unregistered. Register it again after that."
        )


class DefaultVersionInUse(ModelError):
    """The default version cannot be removed while the model has other versions."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Cannot remove default version for model {name}")


class UnregisterTimeout(ModelError):
    """The workers of a model did not stop in time."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Timed out while cleaning resources: {name}")


class WorkersFailed(ModelError):
    """The workers that a synchronous call asked for did not start.

    `status` is the status of the answer: 507 if the model did not fit into memory, 409 if another call has stopped them
    or they must stay, otherwise 500.
    """

    def __init__(self, name: str, version: str, status: int = 500) -> None:
        super().__init__(f"Failed to start workers for model {name} version: {version}")
        self.status = status


class NotEnoughDevices(ModelError):
    """One worker of the model needs more GPUs than the server may use."""

    def __init__(self, name: str, parallel_level: int) -> None:
        super().__init__(f"No enough gpu devices for model:{name} parallelLevel:{parallel_level}")


class NoDescribeWorker(ModelError):
    """A model was asked to describe itself, but has no worker."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f'Model "{name}" has no worker to serve describe request. Please use scale workers API to add workers.'
        )


class DescriptionFailed(ModelError):
    """A worker was asked to describe its model, and did not; ``reason`` says why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f'The handler of model "{name}" failed to describe it: {reason}')


class BadParameter(ModelError):
    """A parameter of a management call is missing or wrong; the message names it."""
