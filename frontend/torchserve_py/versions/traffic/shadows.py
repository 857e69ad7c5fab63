"""The shadows of a server: versions that run a share of the requests which others answer, to be compared.

A shadow gets requests without a sequence only: a step that runs twice would change a stored state twice. Its work is
bounded, and what is too much is dropped, so that no client waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import JobFailed
from torchserve_py.core.serving.errors import BadParameter, ModelError
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.versions.traffic.shadow_answers import AnswerCopy, NotCompared, differences
from torchserve_py.versions.traffic.traffic_body import ShadowRules
from torchserve_py.versions.traffic.traffic_keys import TrafficKeys

logger = logging.getLogger(__name__)

_OUTCOMES: Final = ("same", "different", "failed", "dropped")
#: Requests that a shadow may have at once.
_MOST_AT_ONCE: Final = 4
#: Bytes of a request's body; a larger one is dropped.
_MOST_BYTES: Final = 4 << 20
#: Seconds after which nobody waits for an answer any more.
_LONGEST: Final = 120.0
#: How many differences are kept.
_MOST_DIFFERENCES: Final = 10
#: What names memory of the client; its answer would be written there twice.
_SHARED_MEMORY: Final = b"shared_memory_region"


class ShadowVerdict(Protocol):
    """Is told what came of a comparison."""

    def __call__(self, *, is_same: bool) -> None:
        """Take whether the answers were the same."""


@dataclass(eq=False)
class _Shadow:
    """The shadow of a model: its rules, what came of its requests, and the tasks that compare answers.

    ``verdict`` is told what came of each comparison, for a canary; None: an operator has made the shadow.
    """

    rules: ShadowRules
    verdict: ShadowVerdict | None = None
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OUTCOMES, 0))
    seconds: float = 0.0  # of its answers that were compared
    live_seconds: float = 0.0  # of those that clients got
    differences: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST_DIFFERENCES))
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Shadows:
    """The shadows of a server, at most one for each model."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return those of a server."""
        made = cls(context.serving)
        context.metrics.add(made.requests)
        context.metrics.add(made.seconds)
        return made

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._shadows: dict[str, _Shadow] = {}
        self.requests = Family("ts_shadow_requests_total", Counter, "Count", "Requests that were to run on a shadow")
        self.seconds = Family("ts_shadow_seconds_total", Counter, "Seconds", "Time of answers that were compared")

    def check(self, name: str, rules: ShadowRules, *, of_canary: bool = False) -> None:
        """Check that a version can be a shadow; that of a canary has a weight, and runs what the other one answers.

        Raises ModelNotFound, ModelVersionNotFound; BadParameter: the version answers requests itself, or has sequences,
        or takes requests of another kind; a tolerance is given although the version compares answers itself; a canary
        and an operator want different shadows.
        """
        live, shadow = self._serving.get(name), self._serving.get(name, rules.version)
        if self._answers_itself(shadow, of_canary=of_canary):
            raise BadParameter(
                f"Version {rules.version} of model {name} answers requests itself; a shadow must not be the "
                "default version, and must have no weight."
            )
        if rules.tolerance is not None and (named := shadow.config.plugin_keys.of(TrafficKeys).compare_answers):
            raise BadParameter(
                f"Version {rules.version} of model {name} compares answers with its own {named}; leave tolerance out."
            )
        if live.is_stateful or shadow.is_stateful:
            raise BadParameter(f"Model {name} has sequences: its steps cannot run twice. Only others have shadows.")
        if live.kind != shadow.kind:
            raise BadParameter(f"Versions {live.version}, {rules.version} of model {name} take different requests.")
        present = self._shadows.get(name)
        if present is not None and (present.verdict is not None) != of_canary and self._look_at(name) is not None:
            owner = "an operator" if of_canary else "its canary"
            raise BadParameter(
                f"Model {name} has a shadow of {owner}, version {present.rules.version}; end that first."
            )

    def begin(self, name: str, rules: ShadowRules, verdict: ShadowVerdict | None = None) -> None:
        """Let a version run a share of the requests as well, from now on; with a ``verdict`` it is that of a canary.

        Raises as `check`.
        """
        self.check(name, rules, of_canary=verdict is not None)
        self._drop(name, "other rules")
        state = self._shadows[name] = _Shadow(rules, verdict)
        logger.info(
            "Shadow of model %s version %s: begun, with %g %% of the requests", name, rules.version, rules.percent
        )

        def watcher(answering: ServedModel, call: Call) -> None:
            is_other = answering.version != rules.version
            if call.by_default and is_other and random.random() * 100 < rules.percent:  # noqa: S311 - no secret
                self._run(state, answering, call)

        self._serving.watch(name, watcher)

    def resume(self, name: str, rules: ShadowRules) -> None:
        """Let a version be a shadow as before the server's restart; the log says why if it cannot."""
        if name in self._shadows:  # an operator was faster
            return
        try:
            self.begin(name, rules)
        except ModelError as error:
            version = rules.version
            logger.warning("Shadow of model %s version %s: ended with the restart: %s", name, version, error)

    def saved(self) -> dict[str, ShadowRules]:
        """Return what `resume` needs of each shadow."""
        return {name: state.rules for name, state in self._shadows.items() if state.verdict is None}

    def end(self, name: str, why: str, *, of_canary: bool = False) -> None:
        """Let a model have no shadow; do nothing if it has none, or one that an operator has made, for ``of_canary``.

        Raises BadParameter: it is that of a canary.
        """
        if (state := self._shadows.get(name)) is None:
            return
        if (state.verdict is not None) == of_canary:
            self._drop(name, why)
        elif not of_canary:
            raise BadParameter(f"Model {name} has a shadow of its canary, which ends with that.")

    def _drop(self, name: str, why: str) -> None:
        state = self._shadows.pop(name, None)
        if state is None:
            return
        self._serving.watch(name, None)
        for task in state.tasks:
            task.cancel()
        logger.info("Shadow of model %s version %s: ended: %s", name, state.rules.version, why)

    def close(self) -> None:
        """End all, with the server."""
        for name in list(self._shadows):
            self._drop(name, "the server stops")

    def about(self, name: str) -> dict[str, Any]:
        """Return what is shown of a model's shadow, empty without one."""
        self._look_at(name)
        state = self._shadows.get(name)
        if state is None:
            return {}
        compared = state.outcomes["same"] + state.outcomes["different"]
        means = {"meanMSec": state.seconds, "liveMeanMSec": state.live_seconds} if compared else {}
        return {
            **state.rules.model_dump(exclude_none=True),
            **state.outcomes,
            **{key: round(seconds / compared * 1000, 3) for key, seconds in means.items()},
            "differences": list(state.differences),
        }

    def look(self) -> None:
        """End those that cannot go on."""
        for name in list(self._shadows):
            self._look_at(name)

    def _look_at(self, name: str) -> ServedModel | None:
        """Return the version that is a model's shadow, None if it has none; one that cannot go on ends."""
        if (state := self._shadows.get(name)) is None:
            return None
        try:
            model = self._serving.get(name, state.rules.version)
            if not self._answers_itself(model, of_canary=state.verdict is not None):
                return model
            why = "it answers requests itself now"
        except ModelError as error:
            why = str(error)
        self._drop(name, why)
        return None

    def _answers_itself(self, model: ServedModel, *, of_canary: bool) -> bool:
        is_default = self._serving.get(model.name).version == model.version
        return is_default or (not of_canary and model.version in self._serving.weights(model.name))

    def _run(self, state: _Shadow, answering: ServedModel, call: Call) -> None:
        """Run a call on the shadow, too, unless that is not possible or too much."""
        name = answering.name
        model = self._look_at(name)
        if model is None or call.ended or not _may_run_twice(call):
            return
        status = self._serving.status(model)
        if len(state.tasks) >= _MOST_AT_ONCE or status.queue_pending or _size(call) > _MOST_BYTES:
            self._count(state, model, "dropped")
            return
        live = AnswerCopy()
        call.copy_to(live.take)
        again = call.again(via="server")
        again.by_default, again.priority, again.account = False, 0, None
        task = asyncio.create_task(self._compare(state, model, again, live, call.id))
        state.tasks.add(task)
        task.add_done_callback(state.tasks.discard)

    async def _compare(self, state: _Shadow, model: ServedModel, call: Call, live: AnswerCopy, job_id: str) -> None:
        ours = AnswerCopy()
        self._serving.submit(model, call)
        try:
            async with asyncio.timeout(_LONGEST):
                while not ours.ended.done():
                    ours.take(await call.next())
        except JobFailed as failure:
            ours.take(failure.cause)
        except TimeoutError:
            ours.take(None)
        finally:
            call.cancel()
        try:
            async with asyncio.timeout(_LONGEST):
                await live.ended
        except TimeoutError:
            live.take(None)
        shown = {"requestId": job_id, "live": live.shown(), "shadow": ours.shown()}
        if not live.answered or ours.is_too_large or live.is_too_large:
            self._count(state, model, "dropped")
        elif ours.failed and not live.failed:
            self._count(state, model, "failed")
            state.differences.append(shown)
        else:
            try:
                why = await differences(self._serving, model, live, ours, state.rules.tolerance)
            except NotCompared as error:
                logger.warning("Shadow of model %s version %s: not compared: %s", model.name, model.version, error)
                self._count(state, model, "dropped")
                return
            self._count(state, model, "different" if why else "same")
            self._time(state, model, ours.seconds, live.seconds)
            if why:
                state.differences.append({**shown, "why": list(why)})

    def _count(self, state: _Shadow, model: ServedModel, outcome: str) -> None:
        state.outcomes[outcome] += 1
        if state.verdict is not None and outcome != "dropped":
            state.verdict(is_same=outcome == "same")
        labels = {"model_name": model.name, "model_version": model.version, "outcome": outcome}
        self.requests.child(labels).inc()

    def _time(self, state: _Shadow, model: ServedModel, seconds: float, live_seconds: float) -> None:
        state.seconds += seconds
        state.live_seconds += live_seconds
        labels = {"model_name": model.name, "model_version": model.version}
        self.seconds.child({**labels, "answer": "shadow"}).inc(seconds)
        self.seconds.child({**labels, "answer": "live"}).inc(live_seconds)


def _pieces(call: Call) -> list[Any]:
    """Return the body, or the value of each field of a form."""
    body = call.body
    return [value for _, _, value in body] if isinstance(body, list | tuple) else [body]


def _size(call: Call) -> int:
    return sum(len(piece) for piece in _pieces(call) if isinstance(piece, bytes | bytearray | memoryview | str))


def _may_run_twice(call: Call) -> bool:
    if call.sequence is not None or call.open_ended or call.only_ask:
        return False
    return not any(_SHARED_MEMORY in piece for piece in _pieces(call) if isinstance(piece, bytes | bytearray))
