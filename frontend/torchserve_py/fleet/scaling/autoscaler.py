"""Lets the workers of one model version follow its load: asks `fleet.scaling.scaling` once a second, and obeys.

Without a worker nothing is asked; the first job that waits wakes the autoscaler.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.scheduling.demand import Demand
from torchserve_py.core.workers.pool import WorkerPool
from torchserve_py.fleet.scaling.scaling import Decision, Scaling, ScalingPolicy
from torchserve_py.fleet.scaling.scaling_keys import ScalingConfig, ScalingKeys
from torchserve_py.net.running_time import running_time

logger = logging.getLogger(__name__)

_INTERVAL: Final = 1.0
#: How often (seconds) the log says that requests wait for the first worker.
_PROGRESS_INTERVAL: Final = 10.0


@dataclass(eq=False)
class Autoscaler:
    """Changes the number of workers of a pool between the pool's limits, which the management API may change."""

    label: str  # the model and its version, for the log
    policy: ScalingPolicy
    pool: WorkerPool
    dispatcher: Dispatcher
    metrics: ModelMetrics
    clock: Callable[[], float] = field(default_factory=lambda: running_time().now)

    def __post_init__(self) -> None:
        self._scaling = Scaling(self.policy, self.clock())
        self._timer: asyncio.TimerHandle | None = None
        self._woken_at: float | None = None
        self._told_at = 0.0
        self._closed = False
        self.dispatcher.on_waiting = self._wake

    def start(self) -> None:
        """Look at the load from now on."""
        self._look_in(_INTERVAL)

    def close(self) -> None:
        """Change nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        """A job waits, and no worker is up: start one now if none is about to be."""
        if not self.pool.counts.wanted:
            self._look_in(0.0)

    def _look_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        try:
            now, demand = self.clock(), self.dispatcher.scheduler.demand(self.dispatcher.now())
            decision = self._scaling.decide(demand, self.pool.counts, now)
            if decision is not None:
                self._change(decision, demand, now)
            elif demand.queued and self._woken_at is not None and not self.pool.ready_count:
                self._tell_progress(demand, now - self._woken_at, now)
        finally:
            if self.pool.counts.wanted:
                self._look_in(_INTERVAL)

    def _change(self, decision: Decision, demand: Demand, now: float) -> None:
        wanted = self.pool.counts.wanted
        logger.info("%s: from %d to %d workers: %s", self.label, wanted, decision.workers, decision.why)
        self.metrics.scalings[decision.reason].inc()
        self._woken_at = self._told_at = now
        self.pool.resize(decision.workers, (*demand.movable, *demand.givers), decision.why)

    def _tell_progress(self, demand: Demand, seconds: float, now: float) -> None:
        """Say that requests wait while the first worker loads the model."""
        if now - self._told_at >= _PROGRESS_INTERVAL:
            self._told_at = now
            logger.info("%s: loading for %.0f s, requests that wait: %d", self.label, seconds, demand.queued)


def policy_of(keys: PluginKeys) -> ScalingPolicy:
    """Return how the workers of a model are to follow its load."""
    asked = keys.of(ScalingKeys)
    scaling = asked.scaling or ScalingConfig()
    idle_timeout = math.inf if asked.scaling is None else scaling.idle_timeout
    return ScalingPolicy(scaling.target_wait_ms / 1000, scaling.down_after, idle_timeout)


def autoscaler(
    label: str, keys: PluginKeys, pool: WorkerPool, dispatcher: Dispatcher, metrics: ModelMetrics
) -> Autoscaler:
    """Return what lets the workers in a pool follow the load of a dispatcher."""
    return Autoscaler(label, policy_of(keys), pool, dispatcher, metrics)
