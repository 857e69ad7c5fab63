"""How the fields of a sequence's hash in Redis make a record, and a record these fields; see the scripts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from zlib import crc32

import msgpack

from ts.sequences.steps.record import (
    DIGEST_SIZE,
    Damaged,
    KeptStep,
    RecordHead,
    SequenceRecord,
    pack_head,
    pack_logged_head,
    record_of,
    seal,
    slot_of,
    unpack_head,
    unseal,
)
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.state_log import pack_entry
from ts.sequences.steps.stores.store import Commit, Lease, StoreSettings

#: The fields of kept steps and of their answers, by slot.
KEPT_FIELDS: Final = tuple(f"k{slot}" for slot in range(MOST_KEPT_ANSWERS + 1))
ANSWER_FIELDS: Final = tuple(f"a{slot}" for slot in range(MOST_KEPT_ANSWERS + 1))

#: Instead of the checksum of an answer: it is not kept.
NO_ANSWER: Final = -1

_pack = msgpack.Packer(unicode_errors="surrogatepass").pack

#: Bytes of ids that are kept with the last step before they are added to the string of ids: to write a second key costs
#: more than the few bytes.
_MOST_RECENT: Final = 16 * DIGEST_SIZE
#: How long (seconds) a sequence is kept longer than necessary, so that not every commit has to put off its expiry.
FRESH_SECONDS: Final = 600

#: What is special about a commit: why it ends the sequence, whether it puts off the expiry of the keys, fields of an
#: incarnation that begins.
Special = tuple[str, bool, Sequence[str | bytes] | bool]
#: What becomes of a log: what the script does with it, the number of its first step until now, of the first piece, the
#: pieces, and how many it loses at its beginning afterwards.
PackedLog = tuple[str, int, int, Sequence[bytes], int]
#: A commit as the script gets it: fence, order, state, fields, ids for the string of ids, what is special, the log.
PackedCommit = tuple[str, int, bytes | bool, list[str | bytes], bytes, Special | bool, PackedLog | bool]


def pack_commit(commit: Commit, most_kept: int, now: float) -> PackedCommit:
    """Return what a commit writes, and note in its lease what will be written then.

    `Lease.commits` is the order of the commit among those of the lease, `Lease.mark` the moment from which a commit
    puts off the expiry of the keys, `Lease.number` how many bytes of ids are not in the string of ids.

    Args:
        now: The moment of the commit.
    """
    lease, state, closed, kept, new_ids, begins, log, *_ = commit
    record = lease.record
    lease.commits += 1
    incarnation, recent, added = record.incarnation, b"", b""
    head = pack_head(record, state) if log is None else pack_logged_head(record, record.checkpoint)
    fields: list[str | bytes] = ["until", "", "head", head]
    if begins:
        lease.number = 0
    elif lease.migrated_from:
        fields += ("version", record.version, "states", record.state_version)
    if new_ids or lease.number:
        recent, added = _collect_ids(lease, len(new_ids))
    oldest = record.last - most_kept
    if begins and kept[-1].step.number != record.last:  # all is written anew, and the last step is always kept
        fields += kept_fields(record, {}, recent)
    for (number, request_id, digest), answer in kept:
        if 1 < number <= oldest:
            continue  # a stream that later steps have overtaken: its slot is theirs
        slot = slot_of(number, most_kept)
        sealed = seal(_pack((incarnation, number, request_id, digest, crc32(answer), recent)))
        fields += (KEPT_FIELDS[slot], sealed, ANSWER_FIELDS[slot], answer)
    special: Special | bool = False
    packed_log = _pack_log(commit)
    begins_log = log is not None and not commit.has_log
    if log is not None or commit.has_log:
        fields += ("skip", str(lease.whole_at[-1] - record.checkpoint.log_from if log and lease.whole_at else 0))
    if closed or begins or begins_log or lease.mark <= now:
        special = closed, True, begins and begun_fields(record)
        lease.mark = int(now) + FRESH_SECONDS
    if state is None and log is None:
        lease.mark = 0  # a key that is written again expires only if its expiry is set
    written = False if state is None else state
    return str(lease.fence), lease.commits, written, fields, added, special, packed_log


def _pack_log(commit: Commit) -> PackedLog | bool:
    if commit.log is None:
        return ("end", 0, 0, (), 0) if commit.has_log else False
    record = commit.lease.record
    step, _, log_from = record.checkpoint
    first = commit.log[0].number
    fate = "append" if first > log_from or commit.has_log else "begin" if step >= 0 else "begin without a state"
    pieces = [pack_entry(record.incarnation, *each) for each in commit.log]
    return fate, log_from - commit.dropped, first, pieces, commit.dropped


def _collect_ids(lease: Lease, added: int) -> tuple[bytes, bytes]:
    """Return the ids that are kept with the last step, and those for the string of ids, of which ``added`` are new."""
    count = lease.number + added
    ids = bytes((lease.record.ids or b"")[-count:])
    lease.number = 0 if count >= _MOST_RECENT else count
    return (ids, b"") if lease.number else (b"", ids)


def begun_fields(record: SequenceRecord) -> Sequence[str | bytes]:
    """Return the fields that do not change before the next incarnation, except for the reason of the end."""
    fixed = ("closed", "", "version", record.version, "states", record.state_version)
    return *fixed, "earlier", seal(record.tokens)


def kept_fields(
    record: SequenceRecord, kept: Mapping[int, tuple[KeptStep, bytes | None]], recent: bytes = b""
) -> list[str | bytes]:
    """Return the fields of kept steps, by number, that come from elsewhere; each with its answer, if there is one.

    The last step is kept in any case, since ``recent`` ids, which are not in the string of ids, are kept with it. It
    comes last: an answer from long ago, which a server has not replaced as it uses fewer slots, may have the same slot.
    """
    fields: list[str | bytes] = []
    last = record.last
    for number, (step, answer) in sorted({last: (KeptStep(last, "", b""), None), **kept}.items()):
        slot = slot_of(number, MOST_KEPT_ANSWERS)
        checksum = NO_ANSWER if answer is None else crc32(answer)
        ids = recent if number == last else b""
        fields += (KEPT_FIELDS[slot], seal(_pack((record.incarnation, *step, checksum, ids))))
        if answer is not None:
            fields += (ANSWER_FIELDS[slot], answer)
    return fields


def reading_of(state: SequenceRecord | RecordHead) -> str:
    """Return the field that says that the state with this record or head is read."""
    return f"{state.incarnation} {state.last}"


class RedisFields(NamedTuple):
    """What the fields of a sequence say."""

    head: RecordHead
    record: SequenceRecord
    recent: int  # how many bytes of its ids are not in the string of ids


def unpack_record(
    closed: bytes,
    head: bytes,
    version: bytes,
    states: bytes,
    tokens: bytes,
    ids: bytes,
    cut: int,
    kept: Sequence[bytes],
    *,
    settings: StoreSettings,
) -> RedisFields:
    """Return what the fields say; ``cut``: some ids are left out. Raises Damaged: they cannot be read."""
    try:
        packed = unpack_head(head)
        check_version(packed, version, states)
        steps = [each for _, each in kept_steps(packed.incarnation, enumerate(kept))]
        last = [each for each in steps if each.step.number == packed.last]
        if len(last) != 1:
            raise Damaged("what is known of the last step is missing")
        recent = last[0].recent
        ids += recent
        if len(ids) % DIGEST_SIZE:
            raise Damaged("its request ids are incomplete")
        oldest = packed.last - settings.kept
        kept_now = [each for each in steps if each.step.number == 1 or each.step.number > oldest]
        by_number = {each.step.number: each.step for each in sorted(kept_now) if each.checksum != NO_ANSWER}
        record = record_of(packed, closed.decode(), bytes(unseal(tokens)), ids, by_number)
    except Damaged:
        raise
    except Exception as error:  # bytes that were never written here may be anything
        raise Damaged(f"the record is unreadable: {error!r}") from error
    record.forgotten_ids = record.forgotten_ids or bool(cut)
    record.forget_ids_beyond(settings.most_ids)
    return RedisFields(packed, record, len(recent))


def check_version(head: RecordHead, version: bytes | None, states: bytes | None) -> None:
    """Raise Damaged if the fields with the versions, by which a script decides, are not as the head says."""
    if (version, states) != (head.version.encode(), head.state_version.encode()):
        raise Damaged(f"its version is {head.version!r} by its head, and {version!r} by its field")


class StoredStep(NamedTuple):
    """What a field says of a kept step."""

    incarnation: int
    step: KeptStep
    checksum: int  # of its answer
    recent: bytes  # of the last step: the ids that are not in the string of ids


def kept_steps(incarnation: int, fields: Iterable[tuple[int, bytes | None]]) -> list[tuple[int, StoredStep]]:
    """Return the kept steps of an incarnation among pairs of slot and field. Raises Damaged: one cannot be read."""
    steps = [(slot, unpack_kept(slot, sealed)) for slot, sealed in fields if sealed is not None]
    return [(slot, stored) for slot, stored in steps if stored.incarnation == incarnation]


def unpack_kept(slot: int, sealed: bytes) -> StoredStep:
    """Return what is known of the kept step in a slot. Raises Damaged: it cannot be read."""
    try:
        incarnation, number, request_id, digest, checksum, recent = msgpack.unpackb(
            unseal(sealed), max_array_len=6, max_map_len=0, unicode_errors="surrogatepass"
        )
        step = KeptStep(int(number), str(request_id), bytes(digest))
        return StoredStep(int(incarnation), step, int(checksum), bytes(recent))
    except Damaged as error:
        raise Damaged(f"the kept step in slot {slot} is unreadable: {error}") from error
    except Exception as error:  # bytes that were never written here may be anything
        raise Damaged(f"the kept step in slot {slot} is unreadable: {error!r}") from error


def check_answer(stored: StoredStep, answer: bytes | None) -> bytes:
    """Return a kept answer. Raises Damaged: it is not the one that was stored."""
    if answer is None:
        raise Damaged(f"the answer to step {stored.step.number} is missing")
    if crc32(answer) != stored.checksum:
        raise Damaged(f"the checksum of the answer to step {stored.step.number} is wrong")
    return answer
