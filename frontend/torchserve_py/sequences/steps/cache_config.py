"""The keys of `handler: cache:` in `model-config.yaml`, which configure the states of sequences.

The other keys of `handler` belong to the handler. In `cache` an unknown key is refused: a misspelt `fsync` would show
only when data is lost.
"""

from collections.abc import Collection
from typing import Annotated, Final

from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import FLAG, SECONDS, Text, choice, integer
from torchserve_py.plugins import stores

#: Seconds.
DEFAULT_LEASE = 10.0
#: Bytes. Redis takes no value of more than 512 MB.
DEFAULT_MAX_STATE: Final = 2**28
DEFAULT_MOST_IDS: Final = 100_000
#: Steps.
DEFAULT_CHECKPOINT_EVERY: Final = 100
#: States; more would make reading a sequence slow.
MOST_KEPT_CHECKPOINTS: Final = 1000


#: The store that needs no plugin: states are lost with their worker.
MEMORY: Final = "memory"


class CacheConfig(ClosedSchema):
    """How the states of sequences are kept.

    `capacity` None: as many as there may be sequences. `path` None: see `kept_states`.
    """

    store: Annotated[str, choice(MEMORY, *stores())] = key(
        "store",
        "where states are kept when they are not in a worker's memory",
        "`memory`",
        otherwise=MEMORY,
    )
    capacity: Annotated[int | None, integer(1)] = key(
        "capacity", "states in the memory of one worker", "`maxNumSequence`"
    )
    max_memory_size: Annotated[int | None, integer(1)] = key(
        "maxMemorySize",
        "bytes of a worker's states, without [arenas](state.md#the-arena); beyond it the least recently used move to"
        " the store, or are lost",
        "none",
    )
    path: Text = key(
        "path",
        "with `file`: the file, relative to the server's directory",
        "`sequences/NAME.db` in `data_folder`",
    )
    fsync: Annotated[bool, FLAG] = key(
        "fsync", "with `file`: answers wait until the step is on the disk", "`false`", otherwise=False
    )
    url: Text = key(
        "url",
        "Redis, such as `redis://localhost:6379/0`, or its [Sentinels](sequence-stores.md#redis)",
        "none, needed with `redis`",
    )
    replicas: Annotated[int, integer(0)] = key(
        "replicas",
        "with `redis`: how many [replicas](sequence-stores.md#redis) must have a step before its answer leaves",
        "0",
        otherwise=0,
    )
    lease: Annotated[float, SECONDS] = key(
        "lease",
        "how long a silent server keeps other servers from its sequences",
        "10",
        otherwise=DEFAULT_LEASE,
    )

    expire: Annotated[int | None, integer(1, unit="seconds")] = key(
        "expireSec",
        "with a store: when a sequence expires after its last step; `sequenceMaxIdleMSec` is then when its state"
        " leaves memory",
        "none: it expires after `sequenceMaxIdleMSec`",
    )
    state_version: Text = key(
        "stateVersion",
        "versions with the same value continue each other's sequences",
        "none: a sequence stays with the version that began it",
    )
    max_state_size: Annotated[int, integer(1)] = key(
        "maxStateSize",
        "bytes of one encoded state; a step with more fails with 500",
        "268435456",
        otherwise=DEFAULT_MAX_STATE,
    )
    checkpoint_every: Annotated[int, integer(0)] = key(
        "checkpointEvery",
        "with [a log](state.md#a-log-instead-of-the-state): steps between whole states; 0: never",
        "100",
        otherwise=DEFAULT_CHECKPOINT_EVERY,
    )
    keep_checkpoints: Annotated[int, integer(1, MOST_KEPT_CHECKPOINTS)] = key(
        "keepCheckpoints",
        "whole states to which a sequence can [go back](sequence-stores.md#steps-you-can-go-back-to)",
        "1: the latest one",
        otherwise=1,
    )
    rebuild_batch: Annotated[int | None, integer(1)] = key(
        "rebuildBatch",
        "states in one call of `rebuild`",
        "`batchSize`",
    )
    remember_ids: Annotated[int, integer(1)] = key(
        "rememberIds",
        "remembered `ts_request_id`s of a sequence without numbers, 8 bytes each",
        "100000",
        otherwise=DEFAULT_MOST_IDS,
    )

    @property
    def durable(self) -> bool:
        """Whether a state outlives the worker that runs its sequence."""
        return bool(self.keys_of_store)

    @property
    def keys_of_store(self) -> Collection[str]:
        """The keys that the store reads, besides ``store`` and ``capacity``."""
        offer = stores().get(self.store)
        return () if offer is None else offer.keys
