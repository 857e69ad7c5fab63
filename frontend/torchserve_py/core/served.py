"""The served models: look-up by name and version, and the health of all. Only `registry` changes them."""

from __future__ import annotations

from collections.abc import Sequence

from torchserve_py.core.errors import ModelNotFound, ModelVersionNotFound
from torchserve_py.core.model import Model
from torchserve_py.core.versions import Versions
from torchserve_py.settings.model_spec import ModelSpec


class ServedModels:
    """All registered models."""

    def __init__(self) -> None:
        self._names: dict[str, Versions] = {}
        #: The start-up models whose registration failed, and that have not been registered since.
        self.not_loaded: list[ModelSpec] = []

    # Looking up.

    def get(self, name: str, version: str | None = None) -> Model:
        """Return a version of a model, the default one when ``version`` is None.

        Raises:
            ModelNotFound: No such name.
            ModelVersionNotFound: No such version of it.
        """
        versions = self._names.get(name)
        if versions is None:
            raise ModelNotFound(name)
        if version is None:
            return versions.default
        model = versions.models.get(version)
        if model is None:
            raise ModelVersionNotFound(name, version)
        return model

    def get_latest(self, name: str, version: str | None = None) -> Model:
        """Like `get`, for the Open Inference Protocol: without ``version`` the latest one, see `Versions.latest`."""
        if version is None and (versions := self._names.get(name)) is not None:
            return versions.latest()
        return self.get(name, version)

    def models(self) -> list[tuple[str, Model]]:
        """Return every name with its default version, sorted by name."""
        return [(name, versions.default) for name, versions in sorted(self._names.items())]

    def versions(self, name: str) -> list[Model]:
        """Return all versions of a model, in the order of registration.

        Raises:
            ModelNotFound: No such name.
        """
        if name not in self._names:
            raise ModelNotFound(name)
        return list(self._names[name].models.values())

    # Health.

    def healthy(self) -> bool:
        """Whether the default version of every model has enough workers that are up or on their way (TorchServe)."""
        return all(model.pool.healthy for _, model in self.models())

    def startup_ready(self) -> bool:
        """Whether every start-up model is registered and has its minimum of workers."""
        return not self.not_loaded and all(model.is_ready for model in self._all() if model.loaded_at_startup)

    def worker_pids(self) -> list[int]:
        """Return the process ids of all workers."""
        return [worker.pid for model in self._all() for worker in model.pool.supervisors if worker.pid > 0]

    def _all(self) -> Sequence[Model]:
        return [model for versions in self._names.values() for model in versions.models.values()]
