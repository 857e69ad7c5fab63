"""The message that configures how a worker keeps the states of its sequences."""

from pathlib import Path

from torchserve_py.core.effective import EffectiveConfig
from ts.protocol.messages import Cache
from ts.protocol.server_identity import server_identity

MOST_KEPT_ANSWERS = 64
"""The most steps of a sequence whose answers are kept, so that they can be sent again."""


def cache_message(config: EffectiveConfig, default_file: Path) -> Cache | None:
    """Return how the states of a model's sequences are kept; None for a stateless model.

    A relative path starts at the server's working directory; `default_file` is the file store of a model that names no
    file. Answers are kept for as many steps as a client can send before it gets an answer.
    """
    if not config.stateful:
        return None
    cache = config.cache
    path = Path(cache.path) if cache.path else default_file
    return Cache(
        store=cache.store,
        capacity=cache.capacity or max(config.max_num_sequence, config.max_workers * config.batch_size),
        path=str(path.absolute()) if cache.store == "file" else "",
        fsync=cache.fsync,
        url=cache.url or "",
        replicas=cache.replicas,
        owner=server_identity(),
        lease=cache.lease,
        lifetime=config.sequence_max_idle_ms / 1000,
        kept=min(MOST_KEPT_ANSWERS, config.max_sequence_job_queue_size + 2),
        restart_expired=config.restart_expired_sequences,
    )
