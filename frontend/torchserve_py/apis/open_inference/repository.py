"""The model repository of the Open Inference Protocol: lists models, and loads and unloads them by name.

The repository holds the models of the model store, the models that are served, and those that were unloaded through
this interface. Loading and unloading need ``enable_model_api``, like registering and unregistering.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Self

from torchserve_py.apis.open_inference.stored_models import StoredModels
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.core.archive.errors import ArchiveNotFound
from torchserve_py.core.serving.errors import ModelNotFound
from torchserve_py.core.serving.serving import RegisterRequest, ServedModel, Serving, WorkerStatus
from torchserve_py.endpoints.failures import EndpointError, Failure, unsupported
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.routing import EndpointContext

READY: Final = "READY"
UNAVAILABLE: Final = "UNAVAILABLE"
LOADING: Final = "LOADING"
UNLOADING: Final = "UNLOADING"
#: Seconds within which a model has to say whether it is ready.
_HEALTH_LIMIT: Final = 5.0


class Repository:
    """Loads and unloads models by name, for all endpoints of a server.

    Changes raise the errors of `Serving`, and EndpointError: the model API is off, the model is changing already, or a
    parameter is not supported.
    """

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return that of a server."""
        return cls(context.serving, context.shared(ManagementCalls.of), context.shared(StoredModels.of))

    def __init__(self, serving: Serving, calls: ManagementCalls, stored: StoredModels) -> None:
        self._serving = serving
        self._calls = calls
        self._in_store = stored
        self._unloaded: dict[str, list[SavedModel]] = {}
        #: The models that are changing now: name to `LOADING` or `UNLOADING`.
        self._changing: dict[str, str] = {}

    async def index(self, *, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the ``name``, ``version``, ``state`` and ``reason`` of every version of every model."""
        models = [model for each in self._serving.models() for model in self._serving.versions(each.name)]
        entries = await asyncio.gather(*map(self._served, models))
        named = {entry["name"] for entry in entries}
        for name, saved in self._unloaded.items():
            if name not in named:
                entries += [self._absent(name, each.version, "unloaded") for each in saved]
        named |= self._unloaded.keys()
        for name in sorted((await self._stored()).keys() - named):
            entries.append(self._absent(name, "", "not loaded"))
        return [entry for entry in entries if not ready_only or entry["state"] == READY]

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load every version of a model. A version that is served already serves until its successor is ready."""
        self._calls.check_model_api()
        for key, value in parameters.items():
            if value is not None:
                raise unsupported(f"Model {name!r} cannot be loaded with the parameter {key!r}, only as it is stored.")
        with self._change(name, LOADING):
            served = [saved for saved in self._serving.saved_models() if saved.name == name]
            await self._load_again(served or self._unloaded.get(name, []), is_served=bool(served))
            if not served and name not in self._unloaded:
                locations = (await self._stored()).get(name)
                if locations is None:
                    raise ModelNotFound(name)
                for location in locations:  # usually one per version
                    await self._calls.load(RegisterRequest(url=location, model_name=name))
            self._unloaded.pop(name, None)

    async def _load_again(self, versions: Sequence[SavedModel], *, is_served: bool) -> None:
        """Load versions that were loaded before. Served versions whose files are gone are unloaded.

        Raises ArchiveNotFound: the files of all versions are gone; nothing has changed.
        """
        gone: list[SavedModel] = []
        missing: list[ArchiveNotFound] = []
        for saved in versions:
            try:
                model = await self._calls.load(saved)
            except ArchiveNotFound as error:
                missing.append(error)
                gone.append(saved)
            else:
                if model.version != saved.version:
                    gone.append(saved)
        if missing and len(missing) == len(versions):
            raise missing[0]
        for saved in gone if is_served else ():
            await self._calls.unload(saved.name, saved.version)

    async def unload(self, name: str) -> None:
        """Unload every version of a model after its accepted requests are answered; the files stay."""
        self._calls.check_model_api()
        self._serving.get(name)
        saved = [each for each in self._serving.saved_models() if each.name == name]
        with self._change(name, UNLOADING):
            if saved:
                self._unloaded[name] = saved
            await self._calls.unload(name)

    @contextlib.contextmanager
    def _change(self, name: str, state: str) -> Iterator[None]:
        """Mark a model while it is being loaded or unloaded."""
        if name in self._changing:
            message = f"Model {name!r} is {self._changing[name].lower()} already."
            raise EndpointError(Failure(409, "ConflictStatusException", message))
        self._changing[name] = state
        try:
            yield
        finally:
            del self._changing[name]

    async def _served(self, model: ServedModel) -> dict[str, str]:
        state, reason = self._changing.get(model.name, ""), ""
        if self._serving.is_loaded(model) and state != UNLOADING:
            state = READY
            if not await self._serving.check_health(model, _HEALTH_LIMIT):
                state, reason = UNAVAILABLE, "it says that it is not ready"
        elif not state:
            state, reason = _state_without_worker(self._serving.status(model).workers)
        return {"name": model.name, "version": model.version, "state": state, "reason": reason}

    def _absent(self, name: str, version: str, reason: str) -> dict[str, str]:
        state = self._changing.get(name, UNAVAILABLE)
        return {"name": name, "version": version, "state": state, "reason": reason if state == UNAVAILABLE else ""}

    async def _stored(self) -> Mapping[str, Sequence[str]]:
        """Return the locations of the models in the model store by name, without served and unloaded models."""
        unloaded = [saved.location for versions in self._unloaded.values() for saved in versions]
        return await self._in_store.by_name(unloaded)


def _state_without_worker(workers: Sequence[WorkerStatus]) -> tuple[str, str]:
    if not workers:
        return UNAVAILABLE, "it has no workers"
    failure = next((worker.failure for worker in workers if worker.failure), "")
    if all(worker.gave_up for worker in workers):
        return UNAVAILABLE, f"its workers do not start: {failure}"
    return LOADING, f"the last attempt failed: {failure}" if failure else ""
