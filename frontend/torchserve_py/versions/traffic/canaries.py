"""The canaries of a server: each second they are looked at, and what is decided is carried out and told."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.serving.errors import BadParameter, ModelError
from torchserve_py.core.serving.serving import ModelStatus, Serving
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.versions.traffic.canary import Canary, CanaryPhase, CanaryRules, CanaryVerdict, Judgement
from torchserve_py.versions.traffic.shadows import Shadows
from torchserve_py.versions.traffic.traffic_body import SavedCanary, ShadowRules
from torchserve_py.versions.traffic.trial import Trial

logger = logging.getLogger(__name__)

#: How many decisions are kept for each model.
_MOST_DECISIONS: Final = 20
_CHANGED: Final = "an operator has changed the traffic"
#: How long the weights of a canary last unless its judge moves that on, how often it does, or tries again (seconds).
#: The other servers of a fleet have the weights too, and the judge's may never return.
_LEASE: Final = 600
_RENEWAL: Final = 240
_RENEWAL_RETRY: Final = 15
_LAPSED: Final = f"nobody has judged it for {_LEASE // 60} minutes"

#: Why a job has no answer that has nothing to do with its version.
_NO_FAULT: Final = frozenset(
    {Cause.sequence_expired, Cause.sequence_ended, Cause.sequence_unknown, Cause.sequence_open, Cause.sequence_moved}
    | {Cause.step_applied, Cause.step_differs, Cause.step_gap, Cause.request_running, Cause.not_applied}
    | {Cause.rate_limited, Cause.too_many_at_once, Cause.too_many_tokens, Cause.too_many_sequences}
    | {Cause.unregistered, Cause.draining, Cause.version_gone}
)


class _WorkersOfVersion:
    """The workers of one version, as they were seen last: how many have died."""

    def __init__(self, status: ModelStatus) -> None:
        self._deaths = {worker.id: worker.deaths for worker in status.workers}
        #: How many workers there are.
        self.workers = len(status.workers)

    def died(self, status: ModelStatus) -> int:
        """Return how many workers have died since the last call."""
        now = {worker.id: worker.deaths for worker in status.workers}
        deaths = sum(count - self._deaths.get(worker, 0) for worker, count in now.items())
        self._deaths, self.workers = now, len(now)
        return deaths


def _memory_of(status: ModelStatus) -> float:
    """Return how many bytes a ready worker has on average, 0 if that is not known."""
    sizes = [worker.memory for worker in status.workers if worker.ready and worker.memory]
    return sum(sizes) / len(sizes) if sizes else 0.0


@dataclass
class _Run:
    """A canary that runs.

    Attributes:
        began_at: Since when it runs, in seconds since 1970.
        began, looked: Since when it is at its step, and when it was looked at last (monotonic).
        measured: The latest measurement of the memory of workers that counts.
        renews_at: When it is to be moved on next when its weights end (monotonic).
        is_held: Whether a rollout has its versions' requests for now.
    """

    canary: Canary
    began_at: float
    began: float
    trial: Trial
    watches: Mapping[str, _WorkersOfVersion]
    looked: float
    measured: Mapping[int, int]
    renews_at: float = 0.0
    is_held: bool = False


@dataclass
class _Told:
    """What was decided about the canaries of a model, newest last, and what the present one does."""

    decisions: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_DECISIONS))
    now: str = ""


class Canaries:
    """The canaries of a server, at most one for each model."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server."""
        made = cls(context.serving, context.shared(ManagementCalls.of), context.shared(Shadows.of))
        context.metrics.add(made.decisions)
        context.metrics.followers.append(made.follow)
        context.metrics.value_followers.append(made.follow_values)
        return made

    def __init__(self, serving: Serving, calls: ManagementCalls, shadows: Shadows) -> None:
        self._serving = serving
        self._calls = calls
        self._shadows = shadows
        self._runs: dict[str, _Run] = {}
        self._told: dict[str, _Told] = {}
        self.decisions = Family("ts_canary_decisions_total", Counter, "Count", "Decisions about new versions")

    async def begin(self, name: str, rules: CanaryRules) -> None:
        """Give a new version its first share of the requests, instead of the canary that the model has.

        That one goes on if this is refused. Raises ModelNotFound, ModelVersionNotFound; BadParameter: it is the default
        version already, or takes other requests, or cannot have the shadow that the rules ask for.
        """
        old = self._serving.get(name).version
        if old == self._serving.get(name, rules.version).version:
            raise BadParameter(f"Version {old} of model {name} is the default version already; name a newer one.")
        if rules.shadow is not None:
            self._shadows.check(name, _shadow_of(rules), of_canary=True)
        canary = Canary(rules, old)
        await self._calls.set_weights(name, canary.weights, until=_lease())
        self.forget(name)
        self._start(name, canary, time.time())
        self._runs[name].renews_at = time.monotonic() + _RENEWAL
        self._decide(name, "begun", canary, "")

    def resume(self, name: str, saved: SavedCanary) -> None:
        """Go on with a canary that ran before the server's restart, from the beginning of its step.

        If the versions or their weights are others now, it is called off.
        """
        if name in self._told:  # an operator was faster
            return
        self._told[name] = _Told()
        self._told[name].decisions.extend(saved.decisions)
        rules, weights, present = saved.rules, {}, ""
        every = [Canary(rules, saved.old, step) for step in range(len(rules.steps))]
        try:
            present, weights = self._serving.get(name).version, dict(self._serving.weights(name))
            self._serving.get(name, rules.version)
            canary = next((each for each in every if present == saved.old and each.weights == weights), None)
            if canary is not None:
                self._start(name, canary, saved.began or time.time())
        except ModelError as error:
            self._decide(name, "called off", every[0], f"the server has restarted: {error}")
            return
        if canary is None:
            why = "the server has restarted, and the traffic is not what the canary had made of it"
            self._decide(name, "called off", every[0], why)
            return
        self._decide(name, "resumed", canary, "the server has restarted")

    def saved(self) -> dict[str, SavedCanary]:
        """Return what `resume` needs of each canary that runs."""
        return {
            name: SavedCanary(
                rules=run.canary.rules,
                old=run.canary.old,
                began=run.began_at,
                decisions=list(self._told[name].decisions),
            )
            for name, run in self._runs.items()
        }

    def follow(self, name: str, version: str, jobs: Sequence[EndedJob]) -> None:
        """Count jobs that have ended, if their version is in a canary: a `metrics.model_metrics.FollowJobs`.

        Those that name their version are not shared by chance, so they are not compared. Nor are those that came before
        the step: the first ones of a version to end are not like the others.
        """
        run = self._runs.get(name)
        if run is None or run.is_held or version not in run.watches:
            return
        side = run.trial.new if version == run.canary.rules.version else run.trial.old
        now = time.monotonic()  # the clock of jobs may have stood still with the server
        for job in jobs:
            took = job.ended_at - job.submitted_at
            if not job.by_default or now - took < run.began or job.told in _NO_FAULT:
                continue
            if not job.succeeded and job.told is not Cause.cancelled:
                if not isinstance(job.told, Cause) and job.told < 500:
                    continue  # it is the client's mistake
                seconds = None
            else:
                seconds = took  # a client that left has waited so long
            side.ended((job.worker_id, job.sent_at) if job.sent_at else job.id, seconds)

    def follow_values(self, name: str, version: str, entries: Sequence[Any]) -> None:
        """Take what a handler has reported: a `metrics.server_metrics.FollowValues`."""
        run = self._runs.get(name)
        if run is None or run.is_held or not run.trial.metrics or version not in run.watches:
            return
        for rule in run.trial.metrics:
            for entry in entries:
                if (value := _value_of(entry, rule.name)) is not None:
                    rule.reported(value, new=version == run.canary.rules.version)

    def forget(self, name: str, why: str = _CHANGED) -> None:
        """Judge a model's versions no more, because an operator has said who gets its requests."""
        if (run := self._runs.get(name)) is not None:
            self._end(name, run, "called off", run.canary, why)

    def hold(self, name: str) -> None:
        """Judge a model's versions no more for now: a rollout has their requests."""
        if (run := self._runs.get(name)) is not None:
            run.is_held = True

    def go_on(self, name: str) -> None:
        """Judge them again, from the beginning of the step."""
        if (run := self._runs.get(name)) is not None and run.is_held:
            run.is_held, run.renews_at = False, 0.0
            self._begin_step(run, time.monotonic())

    def about(self, name: str) -> dict[str, Any]:
        """Return what is shown of a model's canary, empty if it has had none."""
        told = self._told.get(name)
        if told is None:
            return {}
        run = self._runs.get(name)
        present = {} if run is None else {"canary": {"version": run.canary.rules.version, "now": told.now}}
        return {**present, "decisions": list(told.decisions)}

    async def look(self, now: float) -> None:
        """Judge each canary, and end weights that nobody judges any more; ``now`` is monotonic."""
        for name, run in list(self._runs.items()):
            try:
                await self._renew(name, run, now)
                if not run.is_held:
                    await self._look_at(name, run, now)
            except EndpointError as error:
                self._end(name, run, "called off", run.canary, str(error))
            except ModelError as error:
                self._end(name, run, "called off", run.canary, str(error))
                await self._give_to_default(name)
        for name in self._serving.lapsed(time.time()):
            await self._end_lapsed(name)

    async def _renew(self, name: str, run: _Run, now: float) -> None:
        """Move on when the weights of a canary end; a fleet that cannot be told is told later."""
        if now < run.renews_at:
            return
        try:
            await self._calls.prolong_weights(name, run.canary.weights, _lease())
        except EndpointError as error:
            logger.warning("The weights of the canary of model %s end if this goes on: %s", name, error)
            run.renews_at = now + _RENEWAL_RETRY
        else:
            run.renews_at = now + _RENEWAL

    async def _end_lapsed(self, name: str) -> None:
        """Give the default version all requests, because the server that judges the canary has not come back."""
        if self._calls.is_held(name):
            return
        default, run = self._serving.get(name).version, self._runs.get(name)
        new = next((each for each in self._serving.weights(name) if each != default), default)
        await self._calls.end_lapsed_weights(name)
        if run is not None:  # this server judges it, and could not tell its fleet
            self._end(
                name, run, CanaryPhase.rolled_back.value, replace(run.canary, phase=CanaryPhase.rolled_back), _LAPSED
            )
        else:
            rules = CanaryRules(version=new)
            self._decide(
                name, CanaryPhase.rolled_back.value, Canary(rules, default, phase=CanaryPhase.rolled_back), _LAPSED
            )

    def _end(self, name: str, run: _Run, decision: str, canary: Canary, why: str) -> None:
        """Judge a canary no more, unless an operator was faster."""
        if self._runs.get(name) is run:
            del self._runs[name]
            self._shadows.end(name, "the canary is over", of_canary=True)
            self._decide(name, decision, canary, why)

    async def _give_to_default(self, name: str) -> None:
        """Let the default version get all requests; the weights of a canary that nobody judges would stay for ever."""
        try:
            await self._calls.set_weights(name, {}, insist=True)
        except (ModelError, EndpointError) as error:
            logger.warning("The weights of model %s stay as they are: %s", name, error)

    async def _look_at(self, name: str, run: _Run, now: float) -> None:
        rules = run.canary.rules
        present = self._serving.get(name).version
        new = self._serving.get(name, rules.version)
        weights, wanted = self._serving.weights(name), run.canary.weights
        is_leaving = weights != wanted and self._serving.status(new).is_leaving
        if weights != wanted or present != run.canary.old:
            why = f"an operator has made {present} the default version" if weights == wanted else _CHANGED
            why = "a version is being unregistered" if is_leaving else why
            self._end(name, run, "called off", run.canary, why)
            if is_leaving or weights == wanted:
                await self._give_to_default(name)
            return
        found = self._judged(name, run, now)
        self._told[name].now = found.why
        if found.verdict is CanaryVerdict.unknown or (
            found.verdict is CanaryVerdict.good and now < run.began + rules.interval_sec
        ):
            return
        canary = run.canary.after(found.verdict)
        if canary.phase is CanaryPhase.promoted:
            await self._calls.set_default(name, rules.version)
        until = _lease() if canary.phase is CanaryPhase.rising else None
        await self._calls.set_weights(name, canary.weights, until=until, insist=canary.phase is CanaryPhase.rolled_back)
        if self._runs.get(name) is not run:  # an operator was faster
            return
        if canary.phase is CanaryPhase.rising:
            run.canary, run.renews_at = canary, now + _RENEWAL
            self._begin_step(run, time.monotonic())
            self._decide(name, "goes on", canary, found.why)
        else:
            self._end(name, run, canary.phase.value, canary, found.why)

    def _judged(self, name: str, run: _Run, now: float) -> Judgement:
        """Return what the trial says of all that has ended until now."""
        rules = run.canary.rules
        self._add_up(name, run.canary)
        self._watch_workers(name, run, now)
        run.trial.look(now - run.looked)
        run.looked = now
        found = run.trial.judge()
        if found.verdict is not CanaryVerdict.worse and time.time() > run.began_at + rules.deadline_sec:
            late = f"it did not get through its steps within {rules.deadline_sec} s (deadlineSec)"
            return Judgement(CanaryVerdict.worse, f"{late}: {found.why}")
        return found

    def _watch_workers(self, name: str, run: _Run, now: float) -> None:
        """Tell the trial of workers that died, and of memory; if more of the new version died, the step begins anew."""
        trial, versions = run.trial, (run.canary.rules.version, run.canary.old)
        new, old = (self._serving.status(self._serving.get(name, version)) for version in versions)
        ours, theirs = (run.watches[version] for version in versions)
        if trial.deaths.died(ours.died(new), theirs.died(old), ours.workers, theirs.workers):
            self._begin_step(run, now)
        measured = self._serving.usage.worker_memory
        if trial.memory is not None and measured is not run.measured:
            run.measured = measured
            sizes = _memory_of(new), _memory_of(old)
            if all(sizes):
                trial.memory.measured(*sizes)

    def _begin_step(self, run: _Run, now: float) -> None:
        run.began = run.looked = now
        run.trial.begin_step()

    def _start(self, name: str, canary: Canary, began_at: float) -> None:
        """Judge a canary from now on. Raises as `Shadows.begin`."""
        versions = {version: self._serving.get(name, version) for version in (canary.old, canary.rules.version)}
        watches = {version: _WorkersOfVersion(self._serving.status(model)) for version, model in versions.items()}
        trial = Trial(canary.rules)
        if trial.differences is not None:
            self._shadows.begin(name, _shadow_of(canary.rules), trial.differences.compared)
        self._add_up(name, canary)  # what ended before is not to be judged
        now = time.monotonic()
        self._runs[name] = _Run(canary, began_at, now, trial, watches, now, self._serving.usage.worker_memory)

    def _add_up(self, name: str, canary: Canary) -> None:
        """Have `follow` told of all that has ended. Raises ModelNotFound, ModelVersionNotFound."""
        for version in (canary.old, canary.rules.version):
            self._serving.activity(self._serving.get(name, version))

    def _decide(self, name: str, decision: str, canary: Canary, why: str) -> None:
        version = canary.rules.version
        share = canary.weights.get(version, 0) if name in self._runs else 0
        entry: Mapping[str, Any] = {"at": time.time(), "version": version, "decision": decision, "why": why}
        told = self._told.setdefault(name, _Told())
        told.decisions.append({**entry, **({"percent": share} if share else {})})
        told.now = ""
        labels = {"model_name": name, "decision": decision.replace(" ", "_")}
        self.decisions.child(labels).inc()
        reason = f": {why}" if why else ""
        at = f", with {share} % of the requests" if share else ""
        logger.info("Canary of model %s version %s: %s%s%s", name, version, decision, at, reason)


def _lease() -> int:
    """Return when weights that are set now end, in seconds since 1970."""
    return int(time.time()) + _LEASE


def _shadow_of(rules: CanaryRules) -> ShadowRules:
    assert rules.shadow is not None
    return ShadowRules(version=rules.version, percent=rules.shadow.percent, tolerance=rules.shadow.tolerance)


def _value_of(entry: Any, name: str) -> float | None:
    """Return the value of a handler's report if it is one of that metric, and a finite number."""
    if not isinstance(entry, list | tuple) or len(entry) < 4 or entry[0] != name:
        return None
    value = entry[3]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
