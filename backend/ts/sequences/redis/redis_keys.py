"""The names of what the Redis store keeps in Redis.

The braces keep all keys of a model in one slot of a cluster. ``ID`` is the id of a sequence.

tsq:{model}:ID             a hash: lease, record and answers; its fields are in `ts.sequences.redis.redis_scripts`
tsq:{model}state:ID        the state, raw; its checksum is in the record's head
tsq:{model}ids:ID          the digests of the request ids, one after the other
tsq:{model}log:ID          a list: what leads from the state to the last step, sealed, one for each step
tsq:{model}damaged:ID      a hash that could not be read, set aside by a repair
tsq:{model}clocks          a hash: by machine, how far Redis's clock is ahead of the machine's, as its workers know
tsq:{model}served          a sorted set: which versions of the model are served, and until when that is believed
tsq:{model}asked:OWNER     a channel: the ids of sequences that the server OWNER is asked to let go
tsq:{model}copied          written only to wait until the replicas have everything that was written before
tsq:{model}converted       present once the sequences of the earlier format have been converted

The earlier format had ``ts:{model/version}:ID`` and ``ts:{model/version}aside:ID``.
"""

import re
from typing import Final, NamedTuple

#: Every kind of key that belongs to one sequence.
SEQUENCE, STATE, IDS, LOG, DAMAGED = KINDS = ("", "state", "ids", "log", "damaged")
_NAME: Final = re.compile(r"tsq:\{(.*?)\}([a-z]*):(.*)", re.DOTALL)


class SequenceKey(NamedTuple):
    """What a key of one sequence says."""

    model: str
    kind: str
    sequence_id: str


class Keys:
    """The names for one model."""

    def __init__(self, model: str) -> None:
        self.prefix = f"tsq:{{{model}}}"
        self.sequence = f"{self.prefix}{SEQUENCE}:"
        self.asked = f"{self.prefix}asked:"
        self.served, self.copied, self.converted, self.clocks = (
            f"{self.prefix}{name}" for name in ("served", "copied", "converted", "clocks")
        )

    def of(self, sequence_id: str, kind: str = SEQUENCE) -> str:
        """Return the key of one kind for a sequence."""
        return f"{self.prefix}{kind}:{sequence_id}"


def split(key: bytes) -> SequenceKey | None:
    """Return what a key says; None if it is not one of a sequence."""
    try:
        found = _NAME.fullmatch(key.decode(errors="surrogatepass"))
    except UnicodeDecodeError:
        return None
    if found is None or found[2] not in KINDS:
        return None
    return SequenceKey(found[1], found[2], found[3])
