"""The effective configuration of a model version, see `core.precedence` for the places that it comes from."""

from dataclasses import dataclass, field

from torchserve_py.core.serving import ServedConfig
from torchserve_py.scheduling.policy import Policy, SequencePolicy
from torchserve_py.scheduling.scaling import ScalingPolicy
from torchserve_py.settings.schemas.cache import CacheConfig
from torchserve_py.settings.schemas.model_config import RayConfig, TorchrunConfig, WarmupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveConfig(ServedConfig):
    """The settings of one model version: those that doors see, and those that only the core needs."""

    min_workers: int
    max_workers: int
    initial_workers: int
    #: How the number of workers follows the load; None: it does not.
    scaling: ScalingPolicy | None
    #: Most concurrent requests of one worker, if each request is a separate call.
    concurrency_target: int
    torchrun: TorchrunConfig | None
    restart_expired_sequences: bool = False
    cache: CacheConfig = field(default_factory=CacheConfig)
    warmup: tuple[WarmupRequest, ...] = ()
    ray: RayConfig = field(default_factory=RayConfig)

    @property
    def ranks(self) -> int:
        """Processes of one worker, which torchrun starts; 0 = the worker is one process, started without torchrun."""
        alone = self.parallel_type == "custom" and (self.torchrun is None or self.async_communication)
        return 0 if alone else self.parallel_level

    def policy(self, *, ahead: bool = False) -> Policy:
        """Return the settings that the scheduler needs; ``ahead``: whether workers can be sent batches ahead."""
        sequences = None
        if self.stateful:
            # Sequences that exceed the present workers' batches wait where that brings more workers.
            most = 0 if self.scaling is None else self.max_workers * self.batch_size
            sequences = SequencePolicy(
                max_idle=self.sequence_max_idle_ms / 1000,
                timeout=self.sequence_timeout_ms / 1000 or None,
                queue_size=self.max_sequence_job_queue_size,
                max_sequences=max(self.max_num_sequence, most),
                restart_expired=self.restart_expired_sequences,
                durable=self.cache.durable,
            )
        return Policy(
            batch_size=self.concurrency_target if self.async_communication else self.batch_size,
            max_batch_delay=self.max_batch_delay_ms / 1000,
            queue_size=self.job_queue_size,
            continuous=self.continuous or self.async_communication,
            ahead=ahead,
            job_ticket=self.use_job_ticket,
            sequences=sequences,
        )
