"""The rows of the table ``sequences`` in the file store, and whether one is sound."""

import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ts.sequences.sqlite.file_pieces import checked_bytes
from ts.sequences.steps.record import Damaged
from ts.sequences.steps.stores.store import REASONS_OF_END

#: No fence is as large.
MOST_FENCE: Final = 2**62


def name_of(text: str) -> bytes:
    """Return the form of a model's name or a sequence's id in the file."""
    return text.encode("utf-8", "surrogatepass")


def text_of(name: Any) -> str:
    """Return what `name_of` was made of; something to be read by a person if it is something else."""
    if not isinstance(name, bytes):
        return str(name)
    try:
        return name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return name.decode("utf-8", "backslashreplace")


def checksum_of(number: int, model: bytes, sequence_id: bytes) -> int:
    """Return the checksum of what tells which sequence a row is of."""
    return zlib.crc32(b"%d %b\0%b" % (number, model, sequence_id))


class FileRow(NamedTuple):
    """A row of the table ``sequences``, of which `valid` says whether it is sound."""

    number: int
    model: bytes
    id: bytes
    name_checksum: int
    fence: int
    owner: str
    lease_until: float
    expires_at: float
    closed: str
    damage: str
    head: bytes | None
    state: bytes | None
    tokens: bytes | None  # from the table of that name

    @classmethod
    def valid(cls, found: Sequence[Any]) -> "FileRow":
        """Return the row. Raises Damaged: a column has what was never written there."""
        number, model, sequence_id, checksum, fence, owner, until, expires_at, closed, damage, *rest = found
        wrong = [
            name
            for name, value, kind in (
                *(("model", model, bytes), ("id", sequence_id, bytes), ("name_checksum", checksum, int)),
                *(("fence", fence, int), ("owner", owner, bytes), ("lease_until", until, float)),
                *(("expires_at", expires_at, float), ("closed", closed, bytes), ("damage", damage, bytes)),
            )
            if type(value) is not kind
        ]
        if wrong:
            raise Damaged(f"there is no sense in {' and '.join(wrong)} of its row")
        if not 0 < fence < MOST_FENCE:
            raise Damaged(f"its fence cannot be {fence}")
        if checksum != checksum_of(number, model, sequence_id):
            raise Damaged("the checksum of its name is wrong")
        reason = closed.decode("utf-8", "backslashreplace")
        if reason not in REASONS_OF_END:
            raise Damaged(f"{reason!r} is no reason for its end")
        head, state, tokens = rest
        if head is not None:
            checked_bytes(head)
        owner_text, problem = owner.decode("utf-8", "backslashreplace"), damage.decode("utf-8", "backslashreplace")
        row = cls(
            *(number, model, sequence_id, checksum, fence, owner_text, until, expires_at, reason, problem),
            *(head, state, tokens),
        )
        if row.damage:
            raise Damaged(row.damage)
        return row
