"""The effective configuration of a model version, see `plans.precedence` for the places that it comes from."""

import math
from dataclasses import dataclass, field
from typing import Final

from torchserve_py.core.plans.sequence_states import SequenceStates
from torchserve_py.core.scheduling.policy import DEADLINE_SAFETY, Policy, SequencePolicy
from torchserve_py.core.serving.serving import ServedConfig
from torchserve_py.core.workers.worker_launcher import NodeShare

#: Seconds: a day.
DEFAULT_REMEMBERED: Final = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveConfig(ServedConfig):
    """The settings of one model version: those that endpoints see, and those that only the server itself needs."""

    min_workers: int
    max_workers: int
    initial_workers: int
    #: Most concurrent requests of one worker, if each request is a separate call.
    concurrency_target: int
    #: Whether the model asks for several processes by the key `torchrun`.
    asks_for_ranks: bool
    #: The share of a worker's time that is promised to no session with a guarantee.
    deadline_safety: float = DEADLINE_SAFETY
    restart_expired_sequences: bool = False
    require_start: bool = False
    remember_ended: float = DEFAULT_REMEMBERED
    #: When a stored sequence leaves its worker, while `sequence_max_idle_ms` is when it expires; 0: at the same time.
    sequence_rest_ms: int = 0
    states: SequenceStates = field(default_factory=SequenceStates)
    #: How many threads a worker computes with; None: as many as its share of the processors.
    threads: int | None = None
    #: What a worker has of the other machine that it runs on; None: it runs on this one.
    node: NodeShare | None = None

    @property
    def ranks(self) -> int:
        """Processes of one worker; 0 = the worker is one process, on all of its GPUs."""
        alone = self.parallel_type == "custom" and (not self.asks_for_ranks or self.async_communication)
        return 0 if alone else self.parallel_level

    def policy(self, *, ahead: bool = False) -> Policy:
        """Return the settings that the scheduler needs; ``ahead``: whether workers can be sent batches ahead."""
        sequences, at_once = None, self.concurrency_target if self.async_communication else self.batch_size
        if self.stateful:
            # Sequences that exceed the present workers' batches wait where that brings more workers.
            most = self.max_workers * at_once if self.follows_load else 0
            sequences = SequencePolicy(
                max_idle=self.sequence_max_idle_ms / 1000,
                timeout=self.sequence_timeout_ms / 1000 or None,
                queue_size=self.max_sequence_job_queue_size,
                max_sequences=max(self.max_num_sequence, most),
                restart_expired=self.restart_expired_sequences,
                require_start=self.require_start,
                remembered=self.remember_ended,
                durable=self.states.durable,
                max_rest=self.sequence_rest_ms / 1000 or math.inf,
            )
        return Policy(
            batch_size=at_once,
            max_batch_delay=self.max_batch_delay_ms / 1000,
            queue_size=self.job_queue_size,
            continuous=self.continuous or self.async_communication,
            ahead=ahead,
            job_ticket=self.use_job_ticket,
            deadline_safety=self.deadline_safety,
            sequences=sequences,
        )
