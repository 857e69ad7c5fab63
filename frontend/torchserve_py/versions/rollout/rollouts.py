"""Rollouts: a version takes the places of another one's workers, so that both need no more room than one did.

A worker of the old version finishes what it runs and goes; then one of the new version starts in its place. Meanwhile
the versions share what names none of them by the numbers of their workers; without any worker, requests wait.

A restart is a rollout of a version to its own places: each worker is replaced by a new process.

Where sequences are in the memory of workers, a new worker starts before an old one goes, so that they can move.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple, Self

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.core.serving.changes import Changes
from torchserve_py.core.serving.errors import BadParameter, ModelError, ModelVersionNotFound, WorkersFailed
from torchserve_py.core.serving.serving import ModelStatus, ServedModel, Serving
from torchserve_py.endpoints.failures import EndpointError, Failure, failure_of
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.versions.traffic.canaries import Canaries

logger = logging.getLogger(__name__)

#: The causes of answers: a worker did not come up, or may not stay; the model has a rollout already.
ROLLOUT_STOPPED: Final = "rollout_stopped"
ROLLOUT_UNDER_WAY: Final = "rollout_under_way"
#: Seconds between two looks whether the old version has nothing left to do, and whether a worker finds room.
_LOOK_INTERVAL: Final = 0.05
#: For how many seconds it must have had nothing: a step whose sequence the new version cannot migrate comes back.
_QUIET: Final = 1.0
_PLACE_INTERVAL: Final = 1.0
#: How long the end of a worker may take beyond its limit (seconds).
_END_LIMIT: Final = 30.0


class RolloutPhase(StrEnum):
    """Where a rollout is."""

    under_way = "under way"
    done = "done"
    stopped = "stopped"


class RolloutStoppedError(EndpointError):
    """A worker of the new version did not come up, or may not stay; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(Failure(status, "RolloutStoppedException", message, ROLLOUT_STOPPED))


@dataclass
class Rollout:
    """One rollout: the ``new`` version takes the ``places`` of the ``old`` one, of which it has ``taken`` some.

    If both are the same it is a restart.
    """

    name: str
    new: str
    old: str
    places: int
    taken: int = 0
    phase: RolloutPhase = RolloutPhase.under_way
    why: str = ""

    @property
    def label(self) -> str:
        """What it is, for the log."""
        return f"{self.kind.capitalize()} of model {self.name} version {self.new}"

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return "restart" if self.new == self.old else "rollout"

    @property
    def refusal(self) -> Failure:
        """What calls get that would change what it changes."""
        text = f"The {self.kind} of version {self.new} of model {self.name} is under way; wait for its end."
        return Failure(409, "ConflictStatusException", text, ROLLOUT_UNDER_WAY)

    def about(self) -> dict[str, Any]:
        """Return what is shown of it."""
        told = {"version": self.new, "from": self.old, "state": self.phase.value}
        return {**told, "taken": self.taken, "places": self.places, **({"why": self.why} if self.why else {})}


class _Workers(NamedTuple):
    """The number of workers of a version, and its limits."""

    number: int
    least: int
    most: int


class _Before(NamedTuple):
    """What a rollout found: it holds again if the rollout stops."""

    default: str
    is_chosen: bool
    weights: Mapping[str, int]
    until: int | None
    workers: Mapping[str, _Workers]


class Rollouts:
    """The latest rollout of each model of a server."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server."""
        calls, canaries = context.shared(ManagementCalls.of), context.shared(Canaries.of)
        settings = context.settings
        made = cls(
            *(context.serving, calls, canaries, settings.unregister_model_timeout),
            share_processors=settings.cpu_launcher_enable,
        )
        context.metrics.add(made.ended)
        return made

    def __init__(
        self,
        serving: Serving,
        calls: ManagementCalls,
        canaries: Canaries,
        finish_limit: float,
        *,
        share_processors: bool = False,
    ) -> None:
        self._serving = serving
        self._calls = calls
        self._canaries = canaries
        #: How long the last worker of an old version may run what only it can run (seconds).
        self._finish_limit = finish_limit
        self._share_processors = share_processors
        self._latest: dict[str, Rollout] = {}
        self._changes = Changes()
        self.ended = Family("ts_rollouts_total", Counter, "Count", "Rollouts that have ended")

    def about(self, name: str) -> dict[str, Any]:
        """Return what is shown of a model's latest rollout, empty if there was none. Raises ModelNotFound."""
        self._serving.get(name)
        latest = self._latest.get(name)
        return {} if latest is None else latest.about()

    async def roll_out(self, name: str, version: str) -> None:
        """Let a version take the places of the one that has the model's requests; complete it if the caller leaves.

        Raises ModelNotFound, ModelVersionNotFound; BadParameter: it cannot replace that version so; EndpointError:
        there is a rollout already, or this one has stopped.
        """
        new, old = self._serving.get(name, version), self._replaced_by(name, version)
        self._check_none_is_under_way(name)
        if old is None:
            return
        self._check(new, old)
        places = self._count(name, old.version) or int(not self._count(name, version))
        await self._complete(Rollout(name, version, old.version, places))

    async def restart(self, name: str, version: str) -> None:
        """Replace the workers of a version by new processes, one after the other; complete it if the caller leaves.

        Raises ModelNotFound, ModelVersionNotFound; BadParameter: its sequences would be lost; EndpointError: there is a
        rollout already, or this restart has stopped.
        """
        model = self._serving.get(name, version)
        self._check_none_is_under_way(name)
        if self._is_in_memory(model) and not self._hands_over(model):
            raise BadParameter(f"{_in_memory(model)} a restart would lose; keep them in a store (handler.cache.store).")
        await self._complete(Rollout(name, version, version, self._count(name, version)))

    @staticmethod
    def _is_in_memory(model: ServedModel) -> bool:
        """Whether its sequences are in the memory of its workers alone."""
        return model.is_stateful and not model.is_durable

    def _hands_over(self, model: ServedModel) -> bool:
        """Whether sequences in the memory of a worker can move to another one."""
        return bool(self._serving.declared(model).get("sequence_states", {}).get("handsOver"))

    def _check_none_is_under_way(self, name: str) -> None:
        if (latest := self._latest.get(name)) is not None and latest.phase is RolloutPhase.under_way:
            raise EndpointError(latest.refusal)

    async def _complete(self, rollout: Rollout) -> None:
        self._latest[rollout.name] = rollout
        await self._changes.complete(self._run(rollout))

    def _replaced_by(self, name: str, version: str) -> ServedModel | None:
        """Return the version that has the requests which a version is to have, None if that has them all."""
        default = self._serving.get(name)
        others = {default.version, *self._serving.weights(name)} - {version}
        if len(others) > 1:
            listed = " and ".join(sorted(others))
            raise BadParameter(f"Versions {listed} of model {name} share its requests; take the weight of one away.")
        return self._serving.get(name, others.pop()) if others else None

    def _check(self, new: ServedModel, old: ServedModel) -> None:
        if new.kind != old.kind:
            versions = f"Versions {old.version} and {new.version} of model {new.name}"
            raise BadParameter(f"{versions} take requests of different kinds.")
        if self._share_processors:
            raise BadParameter(
                "With cpu_launcher_enable each change of the number of workers replaces all of them, so that none can"
                " take the place of another; set the default version and unregister the old one."
            )
        if self._is_in_memory(old) and not self._hands_over(old):
            raise BadParameter(
                f"{_in_memory(old)} a rollout would lose; keep them in a store (handler.cache.store), or set"
                " the default version and unregister the old one."
            )

    async def _run(self, rollout: Rollout) -> None:
        logger.info("%s begins: it takes %d places of version %s", rollout.label, rollout.places, rollout.old)
        try:
            if rollout.kind == "restart":
                with self._calls.holding(rollout.name):
                    await self._renew_all(rollout)
            else:
                with self._calls.holding(rollout.name, rollout.refusal):
                    await self._take_requests(rollout)
        except (ModelError, EndpointError) as error:
            rollout.phase, rollout.why = RolloutPhase.stopped, failure_of(error).message
            logger.error("%s has stopped: %s", rollout.label, rollout.why)
            raise
        except BaseException:
            rollout.phase, rollout.why = (
                RolloutPhase.stopped,
                "the server has failed, or is stopping; its log says more",
            )
            raise
        else:
            rollout.phase = RolloutPhase.done
            logger.info("%s is done", rollout.label)
        finally:
            self.ended.child({"model_name": rollout.name, "result": rollout.phase.value}).inc()

    async def _take_requests(self, rollout: Rollout) -> None:
        """Let the new version take all places; if that stops, all is as it was before, and a canary goes on."""
        name, before = rollout.name, self._present(rollout)
        self._canaries.hold(name)
        try:
            await self._take_all(rollout, before)
        except BaseException as error:
            if isinstance(error, Exception):
                rollout.why = failure_of(error).message
                await self._give_back(rollout, before)
            self._restore(rollout, before)
            self._canaries.go_on(name)
            raise
        self._canaries.forget(name, f"a rollout has made version {rollout.new} the default one")

    def _present(self, rollout: Rollout) -> _Before:
        name, default = rollout.name, self._serving.get(rollout.name).version
        return _Before(
            default,
            any(each.chosen for each in self._serving.saved_models() if (each.name, each.version) == (name, default)),
            dict(self._serving.weights(name)),
            self._serving.weights_until(name),
            {version: self._workers(name, version) for version in (rollout.old, rollout.new)},
        )

    async def _give_back(self, rollout: Rollout, before: _Before) -> None:
        """Give the places that were taken back, one by one; what cannot go back stays, and both share the requests."""
        name, old, new = rollout.name, rollout.old, rollout.new
        back = Rollout(name, old, new, rollout.places)
        try:
            while rollout.taken:
                stuck = self._status(name, new).open_sequences
                stays = not (self._serving.continues(name, old, new) or self._serving.takes_over(name, old, new))
                if stuck and self._count(name, new) == 1 and stays:
                    why = f"it does not continue the sequences of version {new} (open: {stuck})"
                    raise self._stopped(back, 500, why)
                try:
                    await self._take_one(back)
                finally:
                    rollout.taken, back.taken = rollout.taken - back.taken, 0
        except ModelVersionNotFound:  # it was unregistered meanwhile
            had = before.workers[old].number
            with contextlib.suppress(ModelError):
                await self._serving.scale(name, old, had, had, synchronous=True)
                rollout.taken = 0
        except Exception as error:
            text = "%s: version %s cannot have its places back, so that both share the requests: %s"
            logger.error(text, rollout.label, old, failure_of(error).message)
        for version, workers in before.workers.items():
            with contextlib.suppress(ModelError):
                await self._limit(name, version, workers.least, workers.most)

    def _restore(self, rollout: Rollout, before: _Before) -> None:
        """Let the default version and the weights be as before, unless both versions go on sharing the places."""
        name = rollout.name
        with contextlib.suppress(ModelError):
            self._serving.set_default(name, before.default, chosen=before.is_chosen, force=True)
        if rollout.taken:
            return
        present = {each.version for each in self._serving.versions(name)}
        weights = {version: weight for version, weight in before.weights.items() if version in present}
        with contextlib.suppress(ModelError):
            self._serving.set_weights(name, weights, until=before.until, force=True)

    async def _take_all(self, rollout: Rollout, at_first: _Before) -> None:
        name, new, old = rollout.name, rollout.new, rollout.old
        before, own = at_first.workers[old], at_first.workers[new]
        while rollout.taken < rollout.places:
            await self._take_one(rollout)
        count = self._count(name, new)
        least = before.least if self._serving.get(name, new).config.follows_load else count
        await self._limit(name, new, least, max(count, before.most, own.most))
        if self._serving.get(name, old).config.follows_load:  # a sequence that cannot move may start a worker again
            await self._limit(name, old, 0, before.most)
        await self._calls.publish(name, new)

    async def _renew_all(self, rollout: Rollout) -> None:
        name, version = rollout.name, rollout.new
        limit = self._finish_limit + self._serving.get(name, version).config.startup_timeout + _END_LIMIT
        for worker in self._status(name, version).workers:
            if worker.gave_up:
                continue
            try:
                async with asyncio.timeout(limit):
                    await self._renew(rollout, worker.id)
            except TimeoutError:
                text = f"worker {worker.id} was not replaced within {limit:g} s"
                raise self._stopped(rollout, 500, text) from None
            rollout.taken += 1

    async def _renew(self, rollout: Rollout, worker_id: str) -> None:
        """Replace a worker; the new one may wait for room that somebody else has taken."""
        name, version = rollout.name, rollout.new
        while True:
            try:
                await self._serving.renew(name, version, worker_id)
            except WorkersFailed as error:
                place = next((each for each in self._status(name, version).workers if each.id == worker_id), None)
                if place is not None and not place.waits:
                    text = f"a worker of it did not come up again: {place.failure or error}"
                    raise self._stopped(rollout, error.status, text) from error
                await asyncio.sleep(_PLACE_INTERVAL)
            else:
                return

    async def _take_one(self, rollout: Rollout) -> None:
        """Let one worker go, and start one in its place; if that fails, all is as it was before."""
        try:
            await self._exchange_one(rollout)
        finally:
            with contextlib.suppress(ModelError):
                self._serving.let_requests_wait(rollout.name, rollout.old, wait=False)

    async def _exchange_one(self, rollout: Rollout) -> None:
        name, new, old = rollout.name, rollout.new, rollout.old
        had, have = self._count(name, old), self._count(name, new)
        left = max(0, had - 1)
        if self._is_in_memory(self._serving.get(name, old)):
            await self._exchange_in_memory(rollout, left, have)
            return
        open_sequences = 0
        if have:
            await self._share(rollout, left, have)
        elif not left:
            self._serving.let_requests_wait(name, old, wait=True)
            open_sequences = self._status(name, old).open_sequences
        try:
            with contextlib.suppress(WorkersFailed):  # of the others that stay: one does not come up again
                await self._serving.scale(name, old, left, left, synchronous=True)
            await self._start(rollout, have + 1)
            if open_sequences and not self._serving.continues(name, new, old):
                why = f"it does not continue the sequences of version {old} (open: {open_sequences}), whose last"
                raise self._stopped(rollout, 500, f"{why} worker would have to go")
        except BaseException:
            with contextlib.suppress(ModelError):
                await self._serving.scale(name, new, have, have, synchronous=True)
            with contextlib.suppress(ModelError):
                await self._serving.scale(name, old, had, had, synchronous=True)
            if have:
                self._weigh(rollout, had, have)
            raise
        rollout.taken += 1
        await self._share(rollout, left, have + 1)

    async def _exchange_in_memory(self, rollout: Rollout, left: int, have: int) -> None:
        """Start one worker beside the others; then let an old one go, which hands its sequences over.

        They go to the other workers of the old version, and with the last of these to the new version.
        """
        name, new, old = rollout.name, rollout.new, rollout.old
        try:
            await self._start(rollout, have + 1)
            if (count := self._open(name, old)) and not self._serving.takes_over(name, new, old):
                text = f"it does not migrate the sequences of version {old} (open: {count}), which are in memory"
                raise self._stopped(rollout, 500, text)
            self._weigh(rollout, left, have + 1)
            if not left:
                self._serving.hand_over(name, old, new)
                await self._serving.move_sequences(name, old, new)
                if count := self._open(name, old):
                    raise self._stopped(rollout, 500, f"sequences of version {old} (open: {count}) cannot move to it")
        except BaseException:
            with contextlib.suppress(ModelError):
                if have or not self._open(name, new):
                    await self._serving.scale(name, new, have, have, synchronous=True)
            raise
        with contextlib.suppress(WorkersFailed):  # of the others that stay: one does not come up again
            await self._serving.scale(name, old, left, left, synchronous=True)
        rollout.taken += 1

    def _open(self, name: str, version: str) -> int:
        """Return how many sequences of a version are open."""
        return self._status(name, version).open_sequences

    async def _share(self, rollout: Rollout, left: int, have: int) -> None:
        """Share requests by the numbers of workers; wait until what only the old version can run needs none of its."""
        self._weigh(rollout, left, have)
        if left:
            return
        self._serving.hand_over(rollout.name, rollout.old, rollout.new)
        loop = asyncio.get_running_loop()
        now = quiet_since = loop.time()
        end = now + self._finish_limit
        is_stateful = self._serving.get(rollout.name, rollout.old).is_stateful
        while self._count(rollout.name, rollout.old) and now < end:
            status = self._status(rollout.name, rollout.old)
            if status.open_sequences or status.queue_pending:
                quiet_since = now
            elif not is_stateful or now - quiet_since >= _QUIET:
                break
            await asyncio.sleep(_LOOK_INTERVAL)
            now = loop.time()

    def _weigh(self, rollout: Rollout, left: int, have: int) -> None:
        share = round(100 * have / (left + have))
        weights = {rollout.old: 100 - share, rollout.new: share}
        wanted = {version: weight for version, weight in weights.items() if weight}
        self._serving.set_weights(rollout.name, wanted, force=True)

    async def _start(self, rollout: Rollout, count: int) -> None:
        """Have so many workers of the new version ready; one for which there is no room yet may wait for it."""
        name, new = rollout.name, rollout.new
        loop = asyncio.get_running_loop()
        end = loop.time() + self._serving.get(name, new).config.startup_timeout
        while True:
            try:
                await self._serving.scale(name, new, count, count, synchronous=True)
            except WorkersFailed as error:
                missing = [each for each in self._status(name, new).workers if not each.ready]
                if not any(each.waits for each in missing) or loop.time() > end:
                    why = next((each.failure for each in missing if each.failure), str(error))
                    raise self._stopped(rollout, error.status, f"a worker of it did not come up: {why}") from error
                await asyncio.sleep(_PLACE_INTERVAL)
            else:
                return

    async def _limit(self, name: str, version: str, least: int, most: int) -> None:
        """Set the limits of the number of workers, and leave that as it is."""
        count = self._count(name, version)
        with contextlib.suppress(ModelError):
            await self._serving.scale(name, version, min(least, count), max(most, count), synchronous=False)

    def _stopped(self, rollout: Rollout, status: int, why: str) -> RolloutStoppedError:
        return RolloutStoppedError(status, f"Version {rollout.new} of model {rollout.name}: {why}")

    def _workers(self, name: str, version: str) -> _Workers:
        status = self._status(name, version)
        return _Workers(self._count(name, version), status.min_workers, status.max_workers)

    def _status(self, name: str, version: str) -> ModelStatus:
        return self._serving.status(self._serving.get(name, version))

    def _count(self, name: str, version: str) -> int:
        """Return how many workers of a version there are, or are to come up."""
        return sum(not each.gave_up for each in self._status(name, version).workers)


def _in_memory(model: ServedModel) -> str:
    return f"Version {model.version} of model {model.name} keeps its sequences in the memory of its workers, which"
