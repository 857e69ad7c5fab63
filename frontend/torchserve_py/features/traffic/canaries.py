"""The canaries of a server: each second they are looked at, and what is decided is carried out and told."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from torchserve_py.doors.failures import DoorError
from torchserve_py.doors.routing import DoorContext
from torchserve_py.features.management.management_calls import ManagementCalls
from torchserve_py.features.traffic.answer_times import RecentRequests
from torchserve_py.features.traffic.canary import Canary, Judgement, Phase, Verdict, judge
from torchserve_py.features.traffic.traffic_body import CanaryRules, SavedCanary
from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Counter
from torchserve_py.metrics.model_metrics import JobRecord
from torchserve_py.scheduling.effects import Cause
from torchserve_py.serving.errors import BadParameter, ModelError
from torchserve_py.serving.serving import Serving

logger = logging.getLogger(__name__)

#: How many decisions are kept for each model.
_MOST_DECISIONS: Final = 20
_CHANGED: Final = "an operator has changed the traffic"


@dataclass
class _Run:
    """A canary that runs.

    Attributes:
        began: Since when (monotonic) it is at its step.
        recent: What the old version and the new one did lately.
        in_step: How many requests of the new one have ended at this step.
    """

    canary: Canary
    began: float
    recent: Mapping[str, RecentRequests]
    in_step: int = 0


@dataclass
class _Told:
    """What was decided about the canaries of a model, newest last, and what the present one does."""

    decisions: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_DECISIONS))
    now: str = ""


class Canaries:
    """The canaries of a server, at most one for each model."""

    @classmethod
    def of(cls, context: DoorContext) -> Self:
        """Return those of a server."""
        made = cls(context.serving, context.shared(ManagementCalls.of))
        context.metrics.add(made.decisions)
        context.metrics.followers.append(made.follow)
        return made

    def __init__(self, serving: Serving, calls: ManagementCalls) -> None:
        self._serving = serving
        self._calls = calls
        self._runs: dict[str, _Run] = {}
        self._told: dict[str, _Told] = {}
        self.decisions = Family("ts_canary_decisions_total", Counter, "Count", "Decisions about new versions")

    async def begin(self, name: str, rules: CanaryRules) -> None:
        """Give a new version its first share of the requests.

        Raises ModelNotFound, ModelVersionNotFound; BadParameter: it is the default version already, or takes other
        requests.
        """
        old = self._serving.get(name).version
        if old == self._serving.get(name, rules.version).version:
            raise BadParameter(f"Version {old} of model {name} is the default version already; name a newer one.")
        canary = Canary(rules, old)
        await self._calls.set_weights(name, canary.weights)
        self._start(name, canary)
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
        try:
            present, weights = self._serving.get(name).version, dict(self._serving.weights(name))
            self._serving.get(name, rules.version)
        except ModelError as error:
            self._decide(name, "called off", Canary(rules, saved.old), f"the server has restarted: {error}")
            return
        every = [Canary(rules, saved.old, step) for step in range(len(rules.steps))]
        canary = next((each for each in every if present == saved.old and each.weights == weights), None)
        if canary is None:
            why = "the server has restarted, and the traffic is not what the canary had made of it"
            self._decide(name, "called off", every[0], why)
            return
        self._start(name, canary)
        self._decide(name, "resumed", canary, "the server has restarted")

    def saved(self) -> dict[str, SavedCanary]:
        """Return what `resume` needs of each canary that runs."""
        return {
            name: SavedCanary(
                rules=run.canary.rules,
                old=run.canary.old,
                decisions=list(self._told[name].decisions),
            )
            for name, run in self._runs.items()
        }

    def follow(self, name: str, version: str, jobs: Sequence[JobRecord]) -> None:
        """Count jobs that have ended, if their version is in a canary: a `metrics.model_metrics.FollowJobs`."""
        run = self._runs.get(name)
        if run is None or (recent := run.recent.get(version)) is None:
            return
        now = time.monotonic()  # the clock of jobs may have stood still with the server
        for job in jobs:
            if not job.failed:
                recent.count(now, job.ended_at - job.submitted_at)
            elif isinstance(job.told, Cause) or job.told >= 500:  # else it is the client's mistake
                recent.count(now, None)
            else:
                continue
            run.in_step += version == run.canary.rules.version

    def forget(self, name: str) -> None:
        """Judge a model's versions no more, because an operator has said who gets its requests."""
        if (run := self._runs.pop(name, None)) is not None:
            self._decide(name, "called off", run.canary, _CHANGED)

    def about(self, name: str) -> dict[str, Any]:
        """Return what is shown of a model's canary, empty if it has had none."""
        told = self._told.get(name)
        if told is None:
            return {}
        run = self._runs.get(name)
        present = {} if run is None else {"canary": {"version": run.canary.rules.version, "now": told.now}}
        return {**present, "decisions": list(told.decisions)}

    async def look(self, now: float) -> None:
        """Judge each canary; ``now`` is monotonic."""
        for name, run in list(self._runs.items()):
            try:
                await self._look_at(name, run, now)
            except DoorError as error:
                self._call_off(name, run, str(error))
            except ModelError as error:
                self._call_off(name, run, str(error))
                await self._give_to_default(name)

    def _call_off(self, name: str, run: _Run, why: str) -> None:
        """Judge a canary no more, unless an operator was faster."""
        if self._runs.get(name) is run:
            del self._runs[name]
            self._decide(name, "called off", run.canary, why)

    async def _give_to_default(self, name: str) -> None:
        """Let the default version get all requests; the weights of a canary that nobody judges would stay for ever."""
        try:
            await self._calls.set_weights(name, {})
        except (ModelError, DoorError) as error:
            logger.warning("The weights of model %s stay as they are: %s", name, error)

    async def _look_at(self, name: str, run: _Run, now: float) -> None:
        rules = run.canary.rules
        present = self._serving.get(name).version
        self._serving.get(name, rules.version)
        weights, wanted = self._serving.weights(name), run.canary.weights
        is_leaving = bool(weights) and weights.items() < wanted.items()
        if weights != wanted or present != run.canary.old:
            why = f"an operator has made {present} the default version" if weights == wanted else _CHANGED
            self._call_off(name, run, "a version is being unregistered" if is_leaving else why)
            if is_leaving or weights == wanted:
                await self._give_to_default(name)
            return
        self._add_up(name, run.canary)
        for recent in run.recent.values():
            recent.forget(now)
        found: Judgement = judge(rules, run.recent[run.canary.old].record, run.recent[rules.version].record)
        if found.verdict is Verdict.good and run.in_step < rules.min_requests:
            found = Judgement(Verdict.unknown, f"{run.in_step} of {rules.min_requests} requests so far")
        self._told[name].now = found.why
        if found.verdict is Verdict.unknown or (found.verdict is Verdict.good and now < run.began + rules.interval_sec):
            return
        canary = run.canary.after(found.verdict)
        if canary.phase is Phase.promoted:
            await self._calls.set_default(name, rules.version)
        await self._calls.set_weights(name, canary.weights)
        if self._runs.get(name) is not run:  # an operator was faster
            return
        if canary.phase is Phase.rising:
            self._runs[name] = _Run(canary, now, run.recent)
            self._decide(name, "goes on", canary, found.why)
        else:
            del self._runs[name]
            self._decide(name, canary.phase.value, canary, found.why)

    def _start(self, name: str, canary: Canary) -> None:
        """Judge a canary from now on."""
        rules = canary.rules
        recent = {each: RecentRequests(rules.window_sec, rules.min_requests) for each in (canary.old, rules.version)}
        self._add_up(name, canary)  # what ended before is not to be judged
        self._runs[name] = _Run(canary, time.monotonic(), recent)

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
