"""The keys of `handler: cache:` in `model-config.yaml`: what is beneath the handler's `ts.sequence.SequenceCache`.

The rest of `handler` is the handler's own. Of this map every key is the server's, and one that it does not know is
refused: a misspelt `fsync` would be found out by the loss of data.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from torchserve_py.settings.schemas.schema import ClosedSchema, Schema, key
from torchserve_py.settings.schemas.values import FLAG, SECONDS, Choice, Integer, Nested, Text

DEFAULT_LEASE = 10.0
"""Seconds."""


class CacheConfig(ClosedSchema):
    """How the states of sequences are kept.

    `capacity` None: as many as there may be sequences. `path` None: see `torchserve_py.core.sequence_files`.
    """

    store: Annotated[Literal["memory", "file", "redis"], Choice("memory", "file", "redis")] = key(
        "store",
        "where a state is when it is not in the worker's memory, or its worker has died",
        "`memory`",
        otherwise="memory",
    )
    capacity: Annotated[int | None, Integer(1)] = key(
        "capacity", "states in the memory of one worker", "`maxNumSequence`"
    )
    path: Text = key(
        "path",
        "with `file`: the file, seen from the directory that the server runs in",
        "`sequences/NAME@VERSION.db` in `log_location`",
    )
    fsync: Annotated[bool, FLAG] = key(
        "fsync", "with `file`: whether an answer waits until the disk has what it says", "`false`", otherwise=False
    )
    url: Text = key("url", "where Redis is, for example `redis://localhost:6379/0`", "none, needed with `redis`")
    replicas: Annotated[int, Integer(0)] = key(
        "replicas", "with `redis`: how many replicas must have a step before its answer leaves", "0", otherwise=0
    )
    lease: Annotated[float, SECONDS] = key(
        "lease", "how long a server that is not heard of keeps others from its sequences", "10", otherwise=DEFAULT_LEASE
    )

    @property
    def durable(self) -> bool:
        """Whether a state outlives the worker that runs its sequence."""
        return self.store != "memory"


class HandlerKeys(Schema):
    """`handler`: of its keys the server knows one."""

    cache: Annotated[CacheConfig | None, Nested("a map, for example {store: file}")] = key(
        "cache", "how the states of sequences are kept"
    )


def _map_or_nothing(value: Any) -> Any:
    """A handler may have anything else than a map there."""
    return value if isinstance(value, dict | HandlerKeys) else {}


Handler = Annotated[HandlerKeys, BeforeValidator(_map_or_nothing)]
