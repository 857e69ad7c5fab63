"""What a worker is told about the states of its sequences."""

from pathlib import Path

from torchserve_py.models.effective import EffectiveConfig
from ts.protocol.messages import Cache
from ts.protocol.server_identity import server_identity

MOST_KEPT_ANSWERS = 64
"""Of so many steps of a sequence the answers are kept at most, so that each can be sent again."""


def cache_message(config: EffectiveConfig, default_file: Path) -> Cache | None:
    """How the states of a model's sequences are kept; None of a stateless model.

    A path that is not absolute counts from the directory that the server runs in; the file store of a model that names
    none is `default_file`. Answers are kept of as many steps as a client can have sent without having had an answer.
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
