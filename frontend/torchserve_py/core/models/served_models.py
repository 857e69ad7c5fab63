"""The served models: look-up by name and version, and what endpoints may ask about them. Only `registry` changes them.

A request without a version gets, in TorchServe's API, the default version: the first one, until an operator chooses
another. In the Open Inference Protocol it gets the highest version, unless an operator has chosen the default; the
choice holds for all APIs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.model_spec import ModelSpec
from torchserve_py.core.dispatch.ownership import Ownership
from torchserve_py.core.jobs.call import VERSION_HEADER, Call
from torchserve_py.core.models.model import Model
from torchserve_py.core.models.traffic import Traffic
from torchserve_py.core.serving.errors import (
    BadParameter,
    ModelAwaited,
    ModelError,
    ModelNotFound,
    ModelVersionNotFound,
    VersionNotReady,
)
from torchserve_py.core.serving.model_activity import Activity, SequenceOrder, SequencePage, page_of_sequences
from torchserve_py.core.serving.serving import (
    Awaited,
    AwaitedWorkflow,
    ModelStatus,
    Restored,
    ServedModel,
    StickyBy,
    Watcher,
)

_MAX_DIGITS: Final = 18


class ModelVersions:
    """The versions of one model name, at least one; ``changed`` is called whenever another one becomes the default."""

    def __init__(self, first: Model, changed: Callable[[], None]) -> None:
        self.models: dict[str, Model] = {}  # in the order of registration
        self._changed = changed
        self._default = first
        changed()
        self.is_chosen = False  # whether an operator has chosen the default version explicitly
        #: Those that are being unregistered and still run their open sequences, each with what tells that it is gone.
        self.leaving: dict[Model, asyncio.Future[bool]] = {}
        #: Decides which of them has a sequence.
        self.ownership = Ownership(self.models, self.leaving)
        self.add(first)

    @property
    def default(self) -> Model:
        """TorchServe's default version."""
        return self._default

    @default.setter
    def default(self, model: Model) -> None:
        self._default = model
        self._changed()

    @property
    def staying(self) -> list[Model]:
        """The versions that are not being unregistered."""
        return [model for model in self.models.values() if model not in self.leaving]

    def choose(self, model: Model, *, chosen: bool = True) -> None:
        """Make ``model`` the default version, as chosen by an operator or not."""
        self.default = model
        self.is_chosen = chosen
        self.keep_sequences()

    def keep_sequences(self) -> None:
        """Forget where steps have sent sequences, which still run, by weights or a default version that were others.

        Those of versions that are to go move on.
        """
        for model in self.staying:
            model.dispatcher.keep_sequences()

    def add(self, model: Model) -> None:
        """Serve a version, in place of the one with its name if there is one."""
        if (replaced := self.models.get(model.version)) is not None:
            self.leaving.pop(replaced, None)
        self.models[model.version] = model
        model.dispatcher.join(self.ownership, model)

    def remove(self, model: Model) -> None:
        """Remove a version; if there are others, one of them is the default version."""
        del self.models[model.version]
        self.leaving.pop(model, None)
        if self.default is model and self.models:
            self.default = next(iter(self.staying or self.models.values()))
            self.is_chosen = False

    def latest(self) -> Model:
        """Return the default version if it was chosen; otherwise the highest loaded version, or the highest of all.

        Versions of integers separated by points are compared as numbers; if any version has another form, all are
        compared as text.
        """
        if self.is_chosen or len(self.models) == 1:
            return self.default
        staying = self.staying or list(self.models.values())
        candidates = [model for model in staying if model.is_loaded] or staying
        numbers = [_numbers(model.version) for model in candidates]
        if None in numbers:
            return max(candidates, key=lambda model: model.version)
        return max(candidates, key=lambda model: _numbers(model.version) or ())

    def running(self, sequence_id: str) -> Model | None:
        """Return the version that has a sequence open."""
        for model in self.models.values():
            if model.dispatcher.scheduler.sequence(sequence_id) is not None:
                return model
        return None

    def _heir(self, sequence_id: str) -> Model | None:
        """Return the version of which another server has left a sequence."""
        for model in self.models.values():
            if (inheritance := model.dispatcher.inheritance) is not None and inheritance.has(sequence_id):
                return model
        return None

    def choose_for(self, call: Call, sequence_id: str, model: Model) -> Model | None:
        """Return the version that runs a call of a sequence, which was meant for ``model``.

        None: the client has named a version that another one does not leave the sequence to; see `Ownership.arrival`.
        """
        owner = self.running(sequence_id)
        if owner is None and (heir := self._heir(sequence_id)) is not None:
            return heir if heir is model or call.by_default else None
        sequence = None if owner is None else owner.dispatcher.scheduler.sequence(sequence_id)
        continues = owner is not None and owner is not model and model.continues(owner)
        named = not call.by_default
        arrival = self.ownership.arrival(model, owner, sequence, self.default, named=named, continues=continues)
        if owner is not None:
            owner.dispatcher.move(sequence_id, model, arrival.move)
        return arrival.runs


def _numbers(version: str) -> tuple[int, ...] | None:
    """Return ``1.10`` as (1, 10); None for a version of another form."""
    parts = version.split(".")
    if all(part.isascii() and part.isdecimal() and len(part) <= _MAX_DIGITS for part in parts):
        return tuple(int(part) for part in parts)
    return None


def shares_of(weights: Mapping[str, int], default: str) -> Mapping[str, float]:
    """Return the shares that weights give versions; without any, the default version has all."""
    total = sum(weights.values())
    return {version: weight / total for version, weight in weights.items()} if total else {default: 1.0}


def why_not_ready(model: Model) -> str:
    """Return why a version has no ready worker, for people."""
    if failure := model.pool.load_failure:
        return f"its workers do not load it: {failure}"
    return "its workers are starting" if model.pool.supervisors else "it has none: scale it first"


class ServedModels:
    """The half of `serving.serving.Serving` that changes nothing."""

    def __init__(self) -> None:
        self._names: dict[str, ModelVersions] = {}
        self._defaults: Sequence[ServedModel] | None = None
        #: Every model from its registration until its workers are gone, by the id of its `ServedModel`.
        self._live: dict[int, Model] = {}
        #: Models that are not served any more and still answer accepted requests, or end.
        self._ending: set[Model] = set()
        self._not_loaded: list[ModelSpec] = []
        self.restored: Restored | None = None
        self.awaited: Mapping[tuple[str, str], Awaited] = {}
        self.awaited_workflows: Sequence[AwaitedWorkflow] = ()
        #: By the names of models whose versions have weights.
        self._traffic: dict[str, Traffic] = {}
        self._watchers: dict[str, Watcher] = {}
        self.on_change: list[Callable[[], None]] = []
        self.sticky_by: StickyBy = lambda _: None

    def find(self, name: str, version: str | None = None) -> Model:
        """Return a version of a model, the default version when ``version`` is None.

        Raises ModelNotFound: no such name; ModelVersionNotFound: no such version of it.
        """
        versions = self._names.get(name)
        if version is None and versions is not None:
            return versions.default
        model = None if versions is None or version is None else versions.models.get(version)
        if model is None:
            raise self._absent(name, version)
        return model

    def _absent(self, name: str, version: str | None) -> ModelError:
        """Return the error for a model that is not served: it may be one that is to be served."""
        for (awaited_name, awaited_version), awaited in self.awaited.items():
            if awaited_name == name and version in (None, awaited_version):
                return ModelAwaited(name, version, awaited.why)
        ending = next(
            (each.version for each in self._ending if each.name == name and version in (None, each.version)), None
        )
        why = "" if ending is None else f"Version {ending} is being unregistered: it answers its accepted requests."
        if version is None or name not in self._names:
            return ModelNotFound(name, why)
        return ModelVersionNotFound(name, version, why)

    def check_gains(self, name: str, now: Mapping[str, float], then: Mapping[str, float]) -> None:
        """Check that no version which answers gives requests of a model to one that has no ready worker.

        ``now`` and ``then`` are the shares of versions. Nothing is lost where no version that gives some away is ready.

        Raises VersionNotReady.
        """
        models = self._names[name].models
        losing = [version for version, share in now.items() if share > then.get(version, 0)]
        answering = next((each for each in losing if each in models and models[each].is_loaded), None)
        if answering is None:
            return
        for version, share in then.items():
            if share > now.get(version, 0) and not models[version].is_loaded:
                raise VersionNotReady(name, version, why_not_ready(models[version]), answering)

    def shares(self, name: str) -> Mapping[str, float]:
        """Return the share of each version in the requests that name none, as far as it has one."""
        return shares_of(self.weights(name), self._names[name].default.version)

    # The interface of endpoints; its docstrings are those of `Serving`.

    def get(self, name: str, version: str | None = None) -> ServedModel:
        if version is None and (versions := self._names.get(name)) is not None:  # first, since most requests ask so
            return versions.default.served
        return self.find(name, version).served

    def get_latest(self, name: str, version: str | None = None) -> ServedModel:
        if version is None and (versions := self._names.get(name)) is not None:
            return versions.latest().served
        return self.find(name, version).served

    def models(self) -> Sequence[ServedModel]:
        if self._defaults is None:
            self._defaults = tuple(versions.default.served for _, versions in sorted(self._names.items()))
        return self._defaults

    def forget_defaults(self) -> None:
        """Note that `models` changes."""
        self._defaults = None

    def continues(self, name: str, version: str, other: str) -> bool:
        return self.find(name, version).continues(self.find(name, other))

    def takes_over(self, name: str, version: str, other: str) -> bool:
        return self.find(name, version).takes_over(self.find(name, other))

    def versions(self, name: str) -> list[ServedModel]:
        if name not in self._names:
            raise ModelNotFound(name)
        return [model.served for model in self._names[name].models.values()]

    def submit(self, model: ServedModel, call: Call) -> None:
        live = self._live.get(model.id)
        if live is None:
            call.fail(Cause.unregistered)
            return
        refusal: Cause | None = None
        if call.by_default:
            if named := call.header(VERSION_HEADER):
                live, call.by_default = self.find(model.name, named), False
                if live.served.kind != model.kind:
                    raise BadParameter(f"Version {named} of {model.name} takes other requests: name it in the path.")
            elif self._traffic and (traffic := self._traffic.get(model.name)) is not None:
                live = self.find(model.name, traffic.version_for(call, self.sticky_by))
        if call.sequence is not None and (versions := self._names.get(model.name)) and len(versions.models) > 1:
            owner = versions.choose_for(call, call.sequence.id, live)
            if owner is None:
                refusal = Cause.sequence_moved
            else:
                live = owner
        if live.served is not model:
            call.other_version = live.version
        if call.account is None:
            live.submit(call, refusal)
        else:
            live.submit_for(call.account, call, refusal)
        if self._watchers and refusal is None and (watcher := self._watchers.get(model.name)) is not None:
            watcher(live.served, call)

    def watch(self, name: str, watcher: Watcher | None) -> None:
        if watcher is None:
            self._watchers.pop(name, None)
        else:
            self._watchers[name] = watcher

    def weights(self, name: str) -> Mapping[str, int]:
        versions = self._names.get(name)
        if versions is None:
            raise ModelNotFound(name)
        return {model.version: model.weight for model in versions.staying if model.weight}

    def weights_until(self, name: str) -> int | None:
        versions = self._names.get(name)
        if versions is None:
            raise ModelNotFound(name)
        return max((each.weight_until for each in versions.staying if each.weight and each.weight_until), default=None)

    def lapsed(self, now: float) -> Sequence[str]:
        ends = {name: self.weights_until(name) for name in self._traffic}
        return [name for name, end in ends.items() if end is not None and end < now]

    def knows_sequence(self, model: ServedModel, sequence_id: str) -> bool:
        dispatcher = self._running(model, sequence_id, self._of(model)).dispatcher
        return dispatcher.scheduler.knows_sequence(sequence_id, dispatcher.now())

    def _running(self, model: ServedModel, sequence_id: str, otherwise: Model) -> Model:
        """Return the version of a model that has a sequence open."""
        versions = self._names.get(model.name)
        return (None if versions is None else versions.running(sequence_id)) or otherwise

    def release_sequence(self, model: ServedModel, sequence_id: str) -> None:
        live = self._live.get(model.id)
        if live is not None:
            live = self._running(model, sequence_id, live)
            live.dispatcher.close_sequence(sequence_id, keep_stored=True)

    def declared(self, model: ServedModel) -> Mapping[str, Any]:
        return self._of(model).declared

    def is_loaded(self, model: ServedModel) -> bool:
        return self._of(model).is_loaded

    def fails_to_load(self, model: ServedModel) -> bool:
        return bool(self._of(model).pool.load_failure)

    def status(self, model: ServedModel) -> ModelStatus:
        return self._of(model).status()

    def activity(self, model: ServedModel) -> Activity:
        return self._of(model).activity()

    async def sequences(self, model: ServedModel, text: str, order: SequenceOrder, limit: int) -> SequencePage:
        dispatcher = self._of(model).dispatcher
        return await page_of_sequences(dispatcher.scheduler.sequences(), text, order, limit, dispatcher.now)

    def end_sequence(self, model: ServedModel, sequence_id: str) -> None:
        self._of(model).dispatcher.close_sequence(sequence_id, keep_stored=False)

    async def check_health(self, model: ServedModel, limit: float) -> bool:
        return await self._of(model).check_health(limit)

    async def expose_metrics(self, model: ServedModel, limit: float) -> Mapping[str, str] | None:
        return await self._of(model).expose_metrics(limit)

    @property
    def not_loaded(self) -> Sequence[ModelSpec]:
        return self._not_loaded

    def healthy(self) -> bool:
        return all(versions.default.pool.healthy for versions in self._names.values())

    def startup_ready(self) -> bool:
        pools = (model.pool for model in self._all() if model.served.loaded_at_startup)
        if self._not_loaded or self.awaited_workflows or any(each.failed for each in self.awaited.values()):
            return False
        return all(pool.ready_count >= pool.min_workers for pool in pools)

    def worker_pids(self) -> list[int]:
        return [worker.pid for model in self._all() for worker in model.pool.supervisors if worker.pid > 0]

    def record_gpu_memory(self) -> None:
        for model in self._all():
            model.record_gpu_memory()

    # For the rest of this folder.

    def _all(self) -> Sequence[Model]:
        return [model for versions in self._names.values() for model in versions.models.values()]

    def _of(self, model: ServedModel) -> Model:
        live = self._live.get(model.id)
        if live is None:
            raise ModelVersionNotFound(model.name, model.version)
        return live
