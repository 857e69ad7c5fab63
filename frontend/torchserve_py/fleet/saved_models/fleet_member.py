"""One server of a fleet: it tells the fleet what its operator changes here, and follows what others have changed.

A change counts once the fleet has been told of it; then it is made here, and the other servers follow within seconds. A
server compares what the fleet serves with what it serves itself, each time (`following`). What it cannot do, such as
load an archive that it does not have, it tries again; nothing is taken from the fleet for that.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter, Gauge
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.base.settings.schemas.versions import SavedModel
from torchserve_py.base.settings.table import Settings
from torchserve_py.core.archive.downloads import file_name, split_checksum
from torchserve_py.core.archive.errors import ArchiveError, ArchiveExists
from torchserve_py.core.serving.changes import Changes
from torchserve_py.core.serving.errors import InvalidModel, ModelError, ModelVersionNotFound, VersionConflict
from torchserve_py.core.serving.serving import Awaited, RegisterRequest, Restored, Serving
from torchserve_py.endpoints.failures import UNAVAILABLE, EndpointError, Failure
from torchserve_py.endpoints.management.edits import Edit, Registered
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.management.transactions import Transactions
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.fleet.saved_models.bounded_store import BoundedStore
from torchserve_py.fleet.saved_models.fleet_state import NOTHING, FleetState, FleetStateError, ModelVersion, StateStore
from torchserve_py.fleet.saved_models.following import FollowingPlan, FollowingStep, Here, plan, registration
from torchserve_py.fleet.saved_models.saved_models_settings import SavedModelsSettings
from torchserve_py.fleet.saved_models.state_folder import StateFolder
from torchserve_py.plugin_api import PluginUnavailable

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
#: What keeps a server from following in a version; anything else is a defect.
_OBSTACLES: Final = (ArchiveError, ModelError, OSError)


class FleetMember:
    """Keeps what a server serves, and what its fleet serves, the same: a `transactions.ChangeListener`."""

    def __init__(
        self,
        serving: Serving,
        store: StateStore,
        transactions: Transactions,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._serving = serving
        self._store = BoundedStore(store)
        self._transactions = transactions
        self._clock = clock
        #: The newest state that is known; when this server has looked last, and has tried again last (by the clock).
        self._state = NOTHING
        self._followed_at = self._tried_at = clock()
        #: Whether something may differ from that state: it is new, or something has changed here.
        self._differs = True
        #: How many changes were told so far: what was read before the latest is out of date.
        self._told = 0
        #: What holds here and could not be told yet, by model.
        self._untold: dict[str, list[Edit]] = {}
        #: Why a version is not served as the fleet serves it; what is being done; when what was tried last.
        self._failed: dict[ModelVersion, str] = {}
        self._working: dict[ModelVersion, asyncio.Task[None]] = {}
        self._tried: dict[tuple[str, ModelVersion], Any] = {}
        self._blocked: Mapping[str, str] = {}
        #: With which registration of the fleet a version was made here, with the id of its `ServedModel`.
        self._applied: dict[ModelVersion, tuple[int, SavedModel]] = {}
        self._changes = Changes()
        self._joined = asyncio.Event()
        self.errors = Family("ts_fleet_errors_total", Counter, "Count", "Defects met while following the fleet")
        serving.on_change.append(self._changed_here)

    @property
    def number(self) -> int:
        """The number of the state that this server follows."""
        return self._state.number

    @property
    def failed(self) -> int:
        """How many versions it could not serve, or not end, and how many models it could not let others answer."""
        return len(self._failed) + len(self._blocked)

    @property
    def untold(self) -> int:
        """How many changes hold here of which the fleet is not told yet."""
        return sum(map(len, self._untold.values()))

    @property
    def behind(self) -> float:
        """How many seconds ago this server last compared itself with the state of its fleet."""
        return self._clock() - self._followed_at

    def close(self) -> None:
        """Wait for the fleet no more, since the server stops."""
        self._store.close()
        self._joined.set()  # the store tells those who wait for that

    # Telling.

    async def tell(self, edits: Sequence[Edit]) -> None:
        """Tell the fleet of changes that are about to be made here. Raises EndpointError: that cannot be done."""
        edits = self._shared(edits)
        names = {edit.name for edit in edits}
        earlier = [edit for name in names for edit in self._untold.get(name, ())]
        try:
            async with asyncio.timeout(_JOIN_LIMIT):
                await self._joined.wait()
            await self._add(lambda newest: _next(newest, earlier, edits))
        except (FleetStateError, TimeoutError) as error:
            why = str(error) or "its state cannot be read."
            text = f"The fleet cannot be told, so nothing has changed here: {why} Make the change again later."
            raise EndpointError(Failure(503, UNAVAILABLE, text, FLEET_NOT_TOLD, overloaded=True)) from error
        self._have_told([*earlier, *edits])

    async def insist(self, edits: Sequence[Edit]) -> None:
        """Tell the fleet of changes that hold here already; until that is done, they stay here."""
        for edit in self._shared(edits):
            self._untold.setdefault(edit.name, []).append(edit)
        try:
            await self._tell_again()
        except FleetStateError as error:
            logger.error("The fleet is not told yet of a change that holds here: %s", error)

    async def _tell_again(self) -> None:
        """Tell the fleet what it was not told. Raises FleetStateError."""
        for edits in [tuple(each) for each in self._untold.values()]:
            await self._add(partial(_with_all, edits=edits))
            self._have_told(edits)

    def _have_told(self, edits: Sequence[Edit]) -> None:
        self._told += 1
        self._differs = True
        told = set(map(id, edits))
        left = {name: [each for each in waiting if id(each) not in told] for name, waiting in self._untold.items()}
        self._untold = {name: waiting for name, waiting in left.items() if waiting}
        for edit in edits:
            if isinstance(edit, Registered):
                self._applied.pop((edit.name, edit.saved.version), None)

    def _shared(self, edits: Sequence[Edit]) -> list[Edit]:
        """Return what concerns models that fleets share: not the nodes of workflows."""
        here = {saved.name for saved in self._serving.saved_models()} | {name for name, _ in self._state.by_version}
        return [edit for edit in edits if isinstance(edit, Registered) or edit.name in here]

    async def _add(self, change: Callable[[FleetState], FleetState]) -> None:
        """Make the next state of the newest one, and again if another server was faster. Raises FleetStateError."""
        for _ in range(_MOST_TRIES):
            newest = await self._store.newest()
            if not newest.number:
                await self._store.add(self._first())
                continue
            state = change(newest)
            if state is newest or await self._store.add(state):
                return
        raise FleetStateError("Other servers change the state of the fleet all the time.")

    # Following.

    async def follow(self) -> None:
        """Serve what the fleet serves, until it is cancelled; the first server tells what that is.

        Nothing ends that: an error that nobody has foreseen is logged and counted, and the next look is the next try.
        """
        problem = ""
        while True:
            try:
                await self.look()
                problem = ""
            except Exception as error:
                is_foreseen = isinstance(error, FleetStateError)
                if not is_foreseen:
                    self.errors.child({}).inc()
                if problem != repr(error):  # once, not each second
                    problem = repr(error)
                    logger.error("This server cannot follow its fleet: %s", error, exc_info=not is_foreseen)
            await asyncio.sleep(_LOOK_INTERVAL)

    async def look(self) -> None:
        """Look at the state once, and do what it asks for, as far as that is possible now. Raises FleetStateError."""
        await self._tell_again()
        told, now = self._told, self._clock()
        number = await self._store.newest_number()
        if not number:
            await self._add(lambda newest: newest)
        if not number or number != self._state.number:
            newest = await self._store.newest()
            if not newest.number:  # what is served goes on, and is told again
                raise FleetStateError("Its state was removed while it was read.")
            self._note(newest, told)
        self._joined.set()
        if self._told != told:
            return  # what was read may be older than what was told meanwhile; the next look is soon
        tries_again = now - self._tried_at >= _RETRY_INTERVAL and bool(self._failed or self._tried)
        if self._differs or self._blocked or tries_again:
            try:
                self._compare(now, tries_again=tries_again)
            except BaseException:
                self._differs = True
                raise
        self._followed_at = self._clock()

    def _note(self, state: FleetState, told: int) -> None:
        if self._told != told:
            return
        if state.number < self._state.number:
            text = "The state of the fleet went back from %d to %d: what was changed between them is lost"
            logger.error(text, self._state.number, state.number)
        if not self._state.number:
            logger.info("This server belongs to the fleet at %s (state %d)", self._store.name, state.number)
        self._state, self._differs = state, True

    def _first(self) -> FleetState:
        """Return the first state: what is served here, or, after a loss, what this server knew last."""
        return FleetState(1, tuple(self._state.models if self._state.number else self._serving.saved_models()))

    def _compare(self, now: float, *, tries_again: bool) -> None:
        """Compare all that the fleet serves with all that is here, and begin what is to be done."""
        self._differs = False
        if tries_again:
            self._tried, self._tried_at = {}, now
        here = self._here()
        busy = {name for name, _ in self._working} | self._untold.keys() | self._transactions.held.keys()
        todo: FollowingPlan = plan(self._state, here, busy)
        self._blocked = todo.blocked
        differing = {step.key for step in todo.steps} | {key for key in self._failed if key[0] in busy}
        self._failed = {key: why for key, why in self._failed.items() if key in differing}
        for step in todo.steps:
            at = step.kind, step.key
            if at not in self._tried or self._tried[at] != step.value:  # else it is to be tried again later
                self._tried[at] = step.value
                self._begin(step)
        steps = {(step.kind, step.key) for step in todo.steps}
        self._tried = {at: tried for at, tried in self._tried.items() if at in steps or at[1][0] in busy}
        self._show_awaited(here)

    def _show_awaited(self, here: Mapping[ModelVersion, Here]) -> None:
        missing = [key for key in self._state.by_version if key not in here]
        self._serving.awaited = {
            key: Awaited(self._failed.get(key, "it is being loaded"), key in self._failed) for key in missing
        }
        self._serving.forget_not_loaded()

    def _begin(self, step: FollowingStep) -> None:
        """Begin a step; what takes long goes on as a task, which keeps its model from other steps."""
        name, version = step.key
        try:
            match step.kind:
                case "choose":
                    self._serving.set_default(name, version, chosen=step.value, force=True)
                case "weigh":
                    weights, until = step.value
                    self._serving.set_weights(name, weights, until=until, force=True)
                case _:
                    work = self._changes.start(self._work(step))
                    self._working[step.key] = work
        except Exception as error:
            self._fail(step.key, error)

    async def _work(self, step: FollowingStep) -> None:
        name, version = step.key
        try:
            match step.kind:
                case "register":
                    await self._register(step.value)
                case "load":
                    await self._serving.load(step.value)
                case "scale":
                    await self._serving.scale(name, version, *step.value, synchronous=False)
                case _:
                    await self._serving.unregister(name, version)
            if step.kind in ("register", "load"):
                served = self._serving.get(name, version)
                self._applied[step.key] = served.id, registration(step.value)
            self._failed.pop(step.key, None)
        except VersionConflict:
            logger.debug("Model %s version %s is being registered here just now, or ends", name, version)
        except Exception as error:
            self._fail(step.key, error)
        finally:
            self._working.pop(step.key, None)
            self._differs = True

    def _fail(self, key: ModelVersion, error: Exception) -> None:
        is_foreseen = isinstance(error, _OBSTACLES)
        if not is_foreseen:
            self.errors.child({}).inc()
        self._failed[key] = str(error)
        if key in self._serving.awaited:
            self._serving.awaited = {**self._serving.awaited, key: Awaited(str(error), failed=True)}
        text = "This server does not follow its fleet in model %s version %s: %s"
        logger.warning(text, *key, error, exc_info=not is_foreseen)

    def _here(self) -> Mapping[ModelVersion, Here]:
        found: dict[ModelVersion, Here] = {}
        for saved in self._serving.saved_models():
            served = self._serving.get(saved.name, saved.version)
            number, applied = self._applied.get((saved.name, saved.version), (None, None))
            if number is not None and number != served.id:
                del self._applied[saved.name, saved.version]
                applied = None
            found[saved.name, saved.version] = Here(
                saved, self._serving.is_loaded(served), served.lacks_memory(), applied
            )
        return found

    def _changed_here(self) -> None:
        self._differs = True

    async def _register(self, saved: SavedModel) -> None:
        request = replace(RegisterRequest.of(saved), synchronous=False)
        try:
            result = await self._serving.register(request)
        except ArchiveExists:  # the servers share a model store, into which another one has downloaded it
            result = await self._serving.register(replace(request, url=file_name(split_checksum(saved.location)[0])))
        if result.model_version != saved.version:
            await self._serving.unload(result.model_name, result.model_version)
            what = f"{saved.location} holds version {result.model_version} on this server"
            raise InvalidModel(f"{what}, and version {saved.version} elsewhere in the fleet")


def _next(newest: FleetState, earlier: Sequence[Edit], edits: Sequence[Edit]) -> FleetState:
    """Return the next state with what was not told earlier, as far as it fits, and with some edits."""
    before = _with_all(newest, earlier)
    changed = before.with_edits(edits)
    return newest if changed is newest else replace(changed, number=newest.number + 1)


def _with_all(state: FleetState, edits: Sequence[Edit]) -> FleetState:
    """Return the next state with some edits, without those about versions that are not there any more."""
    changed = state
    for edit in edits:
        try:
            changed = changed.with_edit(edit)
        except ModelVersionNotFound as error:
            logger.warning("A change of which the fleet was not told in time is dropped: %s", error)
    return state if changed is state else replace(changed, number=state.number + 1)


def fleet_models(place: str, name: str, settings: Settings) -> Restored | None:
    """Return what the fleet serves whose states are at ``place``, a folder or URL; None: nobody has told yet.

    Raises PluginUnavailable: the state cannot be read. A server that served something else would harm its clients.
    """
    try:
        state = _store_at(place, name).newest()
    except FleetStateError as error:
        raise PluginUnavailable(str(error)) from error
    if not state.number:
        return None
    if settings.load_models:
        logger.warning("The fleet says which models are served (its state %d), and not load_models", state.number)
    return Restored(tuple(state.models), ())


async def belong_to_fleet(context: EndpointContext) -> None:
    """Belong to the fleet that the settings name, if they name one."""
    fleet = context.settings.of(SavedModelsSettings)
    if fleet.fleet_state is None:
        return
    store = await asyncio.to_thread(_store_at, fleet.fleet_state, fleet.fleet_name or "")
    transactions = context.shared(ManagementCalls.of).transactions
    member = FleetMember(context.serving, store, transactions)
    transactions.listeners.append(member)
    context.on_close.append(member.close)
    show_member(context.metrics, member)
    await member.follow()


def show_member(metrics: ServerMetrics, member: FleetMember) -> None:
    """Show at ``/metrics`` which state a server follows, and in what it does not."""
    for name, unit, meaning, read in (
        ("ts_fleet_state", "Count", "Number of the state of its fleet that this server follows", lambda: member.number),
        (
            "ts_fleet_failures",
            "Count",
            "Versions in which this server does not follow its fleet",
            lambda: member.failed,
        ),
        ("ts_fleet_untold", "Count", "Changes made here that the fleet has not been told yet", lambda: member.untold),
        (
            "ts_fleet_seconds_behind",
            "Seconds",
            "Time since this server last compared itself with the state of its fleet",
            lambda: member.behind,
        ),
    ):
        metrics.add(Family(name, Gauge, unit, meaning)).child({}).read_from(read)
    metrics.add(member.errors).child({})


def _store_at(place: str, name: str) -> StateStore:
    """Return the store of a fleet's states at a folder or URL.

    Raises FleetStateError: the URL is not one of Redis, or the package redis is not installed.
    """
    if "://" not in place:
        return StateFolder(Path(place) / name)
    try:
        from torchserve_py.fleet.saved_models.state_in_redis import StateInRedis
    except ModuleNotFoundError as error:
        text = f"The state of a fleet in Redis ({error}) needs a package: pip install 'torchserve-py[redis]'"
        raise FleetStateError(text) from error
    return StateInRedis(place, name)
