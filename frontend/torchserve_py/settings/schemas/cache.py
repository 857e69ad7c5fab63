"""The keys of `handler: cache:` in `model-config.yaml`, which configure the handler's `ts.sequence.SequenceCache`.

The other keys of `handler` belong to the handler. In `cache` an unknown key is refused: a misspelt `fsync` would show
only when data is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from torchserve_py.settings.schemas.schema import ClosedSchema, Schema, key
from torchserve_py.settings.schemas.values import FLAG, SECONDS, Nested, Text, choice, integer

#: Seconds.
DEFAULT_LEASE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStore:
    """A store for the states of sequences, and what it can do.

    ``keys``: its keys besides ``store`` and ``capacity``. ``durable``: a state outlives the worker that runs its
    sequence. ``in_file``: states are in a file, for which the server has a default. ``at_url``: they are at ``url``.
    """

    name: str
    keys: tuple[str, ...] = ()
    durable: bool = True
    in_file: bool = False
    at_url: bool = False


STORES: Final[Mapping[str, StateStore]] = {
    each.name: each
    for each in (
        StateStore(name="memory", durable=False),
        StateStore(name="file", keys=("path", "fsync", "lease"), in_file=True),
        StateStore(name="redis", keys=("url", "replicas", "lease"), at_url=True),
    )
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
        return STORES[self.store].durable


class HandlerKeys(Schema):
    """`handler`, of which the server reads one key."""

    cache: Annotated[CacheConfig | None, Nested("a map, for example {store: file}")] = key(
        "cache", "how the states of sequences are kept"
    )


def _map_or_nothing(value: Any) -> Any:
    """A handler may use another value than a map."""
    return value if isinstance(value, dict | HandlerKeys) else {}


Handler = Annotated[HandlerKeys, BeforeValidator(_map_or_nothing)]
