"""One server of a fleet: it tells the fleet what its operator changes here, and follows what others have changed.

The answer to a call comes once the fleet has been told; the other servers follow within seconds. What a server cannot
do, such as load an archive that it does not have, it tries again; nothing is taken from the fleet for that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torchserve_py.archive.downloads import file_name, split_checksum
from torchserve_py.archive.errors import ArchiveError, ArchiveExists
from torchserve_py.doors.failures import UNAVAILABLE, DoorError, Failure
from torchserve_py.doors.routing import DoorContext
from torchserve_py.features.fleet.fleet_settings import FleetSettings
from torchserve_py.features.fleet.fleet_state import NOTHING, FleetState, FleetStateError, ModelVersion, StateStore
from torchserve_py.features.fleet.state_folder import StateFolder
from torchserve_py.features.management.management_calls import ChangedVersion, ManagementCalls
from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Gauge
from torchserve_py.metrics.server_metrics import ServerMetrics
from torchserve_py.plugin_api import FeatureUnavailable, Restored
from torchserve_py.serving.errors import InvalidModel, ModelError
from torchserve_py.serving.serving import RegisterRequest, Serving
from torchserve_py.settings.schemas.versions import SavedModel
from torchserve_py.settings.table import Settings

logger = logging.getLogger(__name__)

#: The cause of an answer to a call whose change the fleet does not know.
FLEET_NOT_TOLD: Final = "fleet_not_told"
#: How often a server looks for a new state (seconds), and after how long it tries again what it could not do.
_LOOK_INTERVAL: Final = 1.0
_RETRY_INTERVAL: Final = 15.0
#: How long a call waits until its server knows the fleet's state (seconds).
_JOIN_LIMIT: Final = 30.0
#: How often a change is made to another new state, while other servers are faster.
_MOST_TRIES: Final = 100
#: What tells how, rather than how often and for whom, a version is served.
_HOW_MANY_AND_FOR_WHOM: Final[Mapping[str, Any]] = {
    "default": False,
    "chosen": False,
    "weight": None,
    "min_workers": None,
    "max_workers": None,
}


class FleetMember:
    """Keeps what a server serves, and what its fleet serves, the same."""

    def __init__(self, serving: Serving, store: StateStore) -> None:
        self._serving = serving
        self._store = store
        #: The state that this server has followed, and what it could not do then.
        self._followed = NOTHING
        self._failed: set[ModelVersion] = set()
        self._joined = asyncio.Event()

    @property
    def number(self) -> int:
        """The number of the state that this server serves."""
        return self._followed.number

    @property
    def failed(self) -> int:
        """How many versions of that state it could not serve, or could not end."""
        return len(self._failed)

    async def tell(self, changed: ChangedVersion) -> None:
        """Tell the fleet of a version that has changed here. Raises DoorError: that cannot be done."""
        try:
            async with asyncio.timeout(_JOIN_LIMIT):
                await self._joined.wait()
            await self._add(lambda newest: self._with(newest, changed))
        except (FleetStateError, TimeoutError) as error:
            why = str(error) or "its state cannot be read"
            text = f"This server has made the change, but not its fleet: {why} Make the change again later."
            raise DoorError(Failure(503, UNAVAILABLE, text, FLEET_NOT_TOLD)) from error

    async def follow(self) -> None:
        """Serve what the fleet serves, until it is cancelled; the first server tells what that is."""
        told, loop = "", asyncio.get_running_loop()
        again_at = loop.time()
        while True:
            try:
                if not await asyncio.to_thread(self._store.newest_number):
                    await self._add(self._first)
                if await asyncio.to_thread(self._store.newest_number) != self.number or (
                    self._failed and loop.time() >= again_at
                ):
                    await self._follow(await asyncio.to_thread(self._store.newest))
                    again_at = loop.time() + _RETRY_INTERVAL
                self._joined.set()
                told = ""
            except FleetStateError as error:
                if told != str(error):
                    told = str(error)
                    logger.error("%s", error)
            await asyncio.sleep(_LOOK_INTERVAL)

    def _first(self, newest: FleetState) -> FleetState:
        """Return the first state, or the newest if there is one."""
        return newest if newest.number else FleetState(1, tuple(self._serving.saved_models()))

    def _with(self, newest: FleetState, changed: ChangedVersion) -> FleetState:
        key = changed.name, changed.version
        saved = _by_version(self._serving.saved_models()).get(key)
        if saved is not None:
            return newest.with_model(saved, becomes_default=changed.becomes_default)
        return newest.without_model(*key) if key in newest.by_version else newest

    async def _add(self, change: Callable[[FleetState], FleetState]) -> None:
        """Make the next state of the newest one, and again if another server was faster. Raises FleetStateError."""
        for _ in range(_MOST_TRIES):
            newest = await asyncio.to_thread(self._store.newest)
            state = change(newest)
            if state is newest or await asyncio.to_thread(self._store.add, state):
                return
        raise FleetStateError("Other servers change the state of the fleet all the time.")

    async def _follow(self, state: FleetState) -> None:
        """Do what makes this state of the one before. All else stays, such as what an operator is changing just now."""
        before, now = self._followed.by_version, state.by_version
        failed: set[ModelVersion] = set()
        changed = {key: saved for key, saved in now.items() if saved != before.get(key) or key in self._failed}
        for key, saved in changed.items():
            here, earlier = self._here().get(key), before.get(key)
            if here is None:
                await self._try(key, failed, self._register(saved))
            elif earlier is not None and _registration(saved) not in (_registration(earlier), _registration(here)):
                await self._try(key, failed, self._serving.load(saved))
        here_now = self._here()
        for key, saved in changed.items():
            if (served := here_now.get(key)) is None:
                continue
            workers = saved.min_workers or 0, saved.max_workers or 0
            if workers != (served.min_workers, served.max_workers):
                await self._try(key, failed, self._serving.scale(*key, *workers, synchronous=False))
            if saved.default and not served.default:
                self._serving.set_default(*key)
        for name in {name for name, _ in changed}:
            await self._try((name, ""), failed, self._weigh(name, now))
        gone = ((before.keys() | self._failed) - now.keys()) & here_now.keys()
        for key in sorted(gone, key=lambda key: here_now[key].default):  # a default version ends last
            await self._try(key, failed, self._serving.unregister(*key))
        self._followed, self._failed = state, failed

    async def _weigh(self, name: str, now: Mapping[ModelVersion, SavedModel]) -> None:
        """Give the versions that are here their weights."""
        present = {version for named, version in self._here() if named == name}
        wanted = {version: now[name, version].weight or 0 for version in present if (name, version) in now}
        weights = {version: weight for version, weight in wanted.items() if weight}
        if present and weights != self._serving.weights(name):
            self._serving.set_weights(name, weights)

    def _here(self) -> Mapping[ModelVersion, SavedModel]:
        return _by_version(self._serving.saved_models())

    async def _register(self, saved: SavedModel) -> None:
        request = replace(RegisterRequest.of(saved), synchronous=False)
        try:
            result = await self._serving.register(request)
        except ArchiveExists:  # the servers share a model store, into which another one has downloaded it
            result = await self._serving.register(replace(request, url=file_name(split_checksum(saved.location)[0])))
        if result.model_version != saved.version:
            await self._serving.unregister(result.model_name, result.model_version)
            what = f"{saved.location} holds version {result.model_version} on this server"
            raise InvalidModel(f"{what}, and version {saved.version} elsewhere in the fleet")

    async def _try(self, key: ModelVersion, failed: set[ModelVersion], change: Awaitable[object]) -> None:
        try:
            await change
        except (ArchiveError, ModelError, OSError) as error:
            failed.add(key)
            logger.warning("This server does not follow its fleet in model %s version %s: %s", *key, error)


def restored(settings: Settings) -> Restored | None:
    """Return what the fleet serves, None if there is no fleet, or nobody has told yet.

    Raises FeatureUnavailable: the state cannot be read. A server that served something else would harm its clients.
    """
    if (place := settings.of(FleetSettings).fleet_state) is None:
        return None
    try:
        state = _store_at(place).newest()
    except FleetStateError as error:
        raise FeatureUnavailable(str(error)) from error
    if not state.number:
        return None
    if settings.load_models:
        logger.warning("The fleet says which models are served (its state %d), and not load_models", state.number)
    return Restored(tuple(state.models), ())


async def belong_to_fleet(context: DoorContext) -> None:
    """Belong to the fleet that the settings name, if they name one."""
    if (place := context.settings.of(FleetSettings).fleet_state) is None:
        return
    member = FleetMember(context.serving, await asyncio.to_thread(_store_at, place))
    context.shared(ManagementCalls.of).followers.append(member.tell)
    show_member(context.metrics, member)
    await member.follow()


def show_member(metrics: ServerMetrics, member: FleetMember) -> None:
    """Show at ``/metrics`` which state a server serves, and in how many versions it does not."""
    for name, meaning, read in (
        ("ts_fleet_state", "Number of the state of its fleet that this server serves", lambda: member.number),
        ("ts_fleet_failures", "Versions in which this server does not follow its fleet", lambda: member.failed),
    ):
        metrics.add(Family(name, Gauge, "Count", meaning)).child({}).read_from(read)


def _store_at(place: str) -> StateStore:
    """Return the store of a fleet's states at a folder or URL. Raises FleetStateError: the URL is not one of Redis."""
    if "://" not in place:
        return StateFolder(Path(place))
    from torchserve_py.features.fleet.state_in_redis import StateInRedis

    return StateInRedis(place)


def _by_version(models: Iterable[SavedModel]) -> Mapping[ModelVersion, SavedModel]:
    return {(model.name, model.version): model for model in models}


def _registration(saved: SavedModel) -> SavedModel:
    """Return what a version is registered with."""
    return saved.model_copy(update=_HOW_MANY_AND_FOR_WHOM)
