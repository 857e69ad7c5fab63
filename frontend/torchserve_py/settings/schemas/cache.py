"""The keys of `handler: cache:` in `model-config.yaml`, which configure the handler's `ts.sequence.SequenceCache`.

The other keys of `handler` belong to the handler. In `cache` an unknown key is refused: a misspelt `fsync` would show
only when data is lost.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from torchserve_py.settings.schemas.schema import ClosedSchema, Schema, key
from torchserve_py.settings.schemas.values import FLAG, SECONDS, Nested, Text, choice, integer

#: Seconds.
DEFAULT_LEASE = 10.0


#: The stores for states, each with its keys besides ``store`` and ``capacity``. One with a ``path`` keeps states in a
#: file, for which the server has a default; one with a ``lease`` keeps a state when the worker of its sequence dies.
STORES: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": (),
    "file": ("path", "fsync", "lease"),
    "redis": ("url", "replicas", "lease"),
}


class CacheConfig(ClosedSchema):
    """How the states of sequences are kept.

    `capacity` None: as many as there may be sequences. `path` None: see `torchserve_py.core.sequence_storage`.
    """

    store: Annotated[str, choice(*STORES)] = key(
        "store",
        "where states are kept that are not in the memory of a worker, or whose worker has died",
        "`memory`",
        otherwise="memory",
    )
    capacity: Annotated[int | None, integer(1)] = key(
        "capacity", "states in the memory of one worker", "`maxNumSequence`"
    )
    path: Text = key(
        "path",
        "with `file`: the file, seen from the directory that the server runs in",
        "`sequences/NAME@VERSION.db` in `log_location`",
    )
    fsync: Annotated[bool, FLAG] = key(
        "fsync", "with `file`: whether an answer waits until its step is on the disk", "`false`", otherwise=False
    )
    url: Text = key(
        "url",
        "where Redis is, for example `redis://localhost:6379/0`, or its Sentinels:"
        " `redis+sentinel://host:26379,host:26379/mymaster/0`",
        "none, needed with `redis`",
    )
    replicas: Annotated[int, integer(0)] = key(
        "replicas", "with `redis`: how many replicas must have a step before its answer leaves", "0", otherwise=0
    )
    lease: Annotated[float, SECONDS] = key(
        "lease",
        "how long a server that gives no sign of life keeps other servers from its sequences",
        "10",
        otherwise=DEFAULT_LEASE,
    )

    @property
    def durable(self) -> bool:
        """Whether a state outlives the worker that runs its sequence."""
        return "lease" in STORES[self.store]


class HandlerKeys(Schema):
    """`handler`, of which the server reads one key."""

    cache: Annotated[CacheConfig | None, Nested("a map, for example {store: file}")] = key(
        "cache", "how the states of sequences are kept"
    )


def _map_or_nothing(value: Any) -> Any:
    """A handler may use another value than a map."""
    return value if isinstance(value, dict | HandlerKeys) else {}


Handler = Annotated[HandlerKeys, BeforeValidator(_map_or_nothing)]
