"""Sequences in Redis: for several machines, each of which can continue where another one stopped.

A sequence is one hash, with its state and its request ids in keys of their own; see `ts.sequences.redis.redis_keys` and
`ts.sequences.redis.redis_scripts`. They expire by themselves. Each operation is one script over all sequences of a
batch: one round trip, and atomic for each sequence.

Redis keeps data across its own restart only if configured so: with ``appendonly yes`` commits survive the death of the
process, with ``appendfsync always`` also a crash of the machine. Redis copies data to its replicas after it has
answered, so a promoted replica may lack the latest commits. With ``replicas``, a write that an answer relies on
succeeds once that many replicas have it (``WAIT``, sent in the same pipeline, because it covers the writes of its own
connection). If the replicas do not have the write in time, it may be lost, so the store does not report success. Leases
are taken that way, too: a former primary that does not know yet that it was replaced has no replicas, and what it says
of a sequence may be old.

If the connection breaks, the store retries the operation for a limited time, so every operation is safe to run twice.
"""

import logging
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgpack

from ts.jobs.sequence_steps import StoreReports
from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ENDED
from ts.sequences.redis.redis_clock import RedisClock
from ts.sequences.redis.redis_keys import Keys
from ts.sequences.redis.redis_record import (
    ANSWER_FIELDS,
    FRESH_SECONDS,
    KEPT_FIELDS,
    NO_ANSWER,
    PackedCommit,
    check_answer,
    check_version,
    kept_steps,
    pack_commit,
    reading_of,
    unpack_record,
)
from ts.sequences.redis.redis_scripts import ACQUIRE, COMMIT, END, NOTE_READING, PEEK, RELEASE, RENEW
from ts.sequences.steps.record import DIGEST_SIZE, Damaged, SequenceRecord, check_state, unpack_head
from ts.sequences.steps.server_identity import is_gone, machine
from ts.sequences.steps.state_log import read_latest
from ts.sequences.steps.stores.store import (
    ENDS_WORKERS,
    IDLE,
    JUST_NOW,
    NO_REPORTS,
    REVIVABLE_SECONDS,
    SUSPENDED_SECONDS,
    Acquired,
    Commit,
    HeldElsewhere,
    Lease,
    OtherVersion,
    Store,
    StoreError,
    StoreSettings,
    Unreadable,
    Watch,
)

logger = logging.getLogger(__name__)

NO_PACKAGE: Final = "a store in Redis needs the package redis: pip install 'torchserve-py[redis]'"
#: The lifetime of the key that is written only to wait for the replicas (ms).
_COPIED_LIFETIME: Final = 60_000
#: The most bytes of commits that one command writes, except that each may be larger by itself.
_PORTION: Final = 32 * 2**20
_pack = msgpack.Packer(use_bin_type=False).pack

_HELD, _TAKEN, _OTHER_VERSION = 0, 1, 2
#: What became of a commit; the last one: refused, but perhaps written before.
_REFUSED, _WRITTEN, _BEHIND, _UNCERTAIN = 0, 1, 2, -1


class RedisStore(Store):
    """Sequences in the Redis database at ``url``.

    Raises StoreError: the package ``redis`` is missing, the database cannot be reached, or it may drop sequences
    by itself.

    Args:
        replicas: The number of replicas that must have a commit before it succeeds.
    """

    def __init__(self, settings: StoreSettings, url: str, *, replicas: int = 0) -> None:
        try:
            from ts.sequences.redis.redis_connection import RedisConnection
            from ts.sequences.redis.redis_conversion import convert
            from ts.sequences.redis.redis_keeping import check_keeping, told_by
        except ModuleNotFoundError as error:
            raise StoreError(NO_PACKAGE) from error
        self._settings, self._url, self._replicas = settings, url, replicas
        self._keys = Keys(settings.model)
        self._lease, self._lifetime = _milliseconds(settings.lease), _milliseconds(settings.lifetime)
        self._closed_left, self._revivable = _milliseconds(settings.remembered), _milliseconds(REVIVABLE_SECONDS)
        self._state_left = self._lifetime + _milliseconds(SUSPENDED_SECONDS + FRESH_SECONDS)
        self._open_left = self._state_left + self._closed_left
        self._most_ids = settings.most_ids * DIGEST_SIZE
        self._connection = RedisConnection(url, settings.lease, replicas)
        self._call, self._client = self._connection.call, self._connection.client
        self._acquire, self._peek, self._renew, self._release, self._commit, self._end, self._note_reading = map(
            self._client.register_script, (ACQUIRE, PEEK, RENEW, RELEASE, COMMIT, END, NOTE_READING)
        )
        self._clock = RedisClock(settings.lease)
        #: For idle times: a jump is believed once no sequence can be idle by a moment that was noted before it.
        self._idle_clock = RedisClock(max(settings.lease, settings.lifetime))
        self._call(self._recall_clock)
        self._call(self._read_clock)
        check_keeping(self._connection.name, told_by(self._connection), replicas)
        convert(self._connection, self._keys, settings)

    # Leases

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        acquired = self._acquire_for(None, sequence_ids, active_since)
        for index, each in enumerate(acquired):
            if isinstance(each.refusal, OtherVersion) and (self._settings.migrates or not each.refusal.is_served):
                acquired[index] = self._acquire_of_other_version(sequence_ids[index], active_since, each.refusal)
        return acquired

    def _acquire_for(
        self, version: str | None, sequence_ids: Sequence[str], active_since: Mapping[str, float]
    ) -> list[Acquired]:
        """Ask for sequences as a version does, by default this one; take what a server held that has ended."""
        acquired, holders = self._acquire_all(sequence_ids, active_since, {}, version=version)
        gone = {sequence_id: holder for sequence_id, holder in holders.items() if is_gone(holder)}
        if gone:
            again, _ = self._acquire_all(list(gone), active_since, gone, version=version)
            instead = dict(zip(gone, again, strict=True))
            acquired = [instead.get(each, old) for each, old in zip(sequence_ids, acquired, strict=True)]
        return acquired

    def _acquire_of_other_version(
        self, sequence_id: str, active_since: Mapping[str, float], refusal: OtherVersion
    ) -> Acquired:
        """Take the lease of a sequence that no server can continue, or this version once it has migrated the state."""
        (acquired,) = self._acquire_for(refusal.version, [sequence_id], active_since)
        if acquired.lease is None or acquired.lease.record.closed:
            return acquired
        if self._settings.migrates:
            return acquired._replace(refusal=acquired.refusal or refusal)
        return Acquired(acquired.lease, None, refusal)

    def _acquire_all(
        self,
        sequence_ids: Sequence[str],
        active_since: Mapping[str, float],
        gone: Mapping[str, str],
        *,
        version: str | None = None,
    ) -> tuple[list[Acquired], dict[str, str]]:
        """Return the results of asking for sequences, and who holds those that others hold.

        Args:
            gone: By id, an owner that has ended.
            version: The version of the model that asks, by default that of this process.
        """
        settings, asked_at = self._settings, boot_time()
        fences = [secrets.randbits(62) for _ in sequence_ids]
        since = [active_since.get(each, asked_at) for each in sequence_ids]

        def arguments() -> list[Any]:
            nonlocal asked_at
            if self._connection.repeated:  # perhaps another Redis, with another clock
                self._read_clock()
            asked_at = boot_time()
            own = (settings.owner, version or settings.version, settings.state_version)
            limits = (self._lease, self._lifetime, self._state_left, self._open_left, self._closed_left)
            rows: list[Any] = []
            for sequence_id, fence, moment in zip(sequence_ids, fences, since, strict=True):
                rows += (fence, _milliseconds(self._idle_clock.shown_at(moment)), gone.get(sequence_id, ""))
            return [*own, *limits, self._most_ids, self._redis_time(asked_at), *rows]

        now, results = self._run(self._acquire, sequence_ids, arguments, copied=True)
        self._heard(now / 1000, asked_at)
        holders = {
            sequence_id: result[1].decode(errors="replace")
            for sequence_id, result in zip(sequence_ids, results, strict=True)
            if result[0] == _HELD
        }
        rows = zip(sequence_ids, fences, results, strict=True)
        return [self._acquired(*row) for row in rows], holders

    def _acquired(self, sequence_id: str, fence: int, result: list[Any]) -> Acquired:
        kind, *fields = result
        if kind == _HELD:
            return Acquired(None, None, HeldElsewhere())
        if kind == _OTHER_VERSION:
            return self._of_other_version(*fields)
        if kind != _TAKEN:
            return Acquired(None, None, Unreadable(_text(fields[0])))
        *stored, state, problem, was_idle, pieces, reading = fields
        if stored[1] is None:
            return Acquired(Lease(sequence_id, fence, SequenceRecord()))
        try:
            head, record, recent = unpack_record(*stored, settings=self._settings)
        except Damaged as damage:
            self._give_back(Lease(sequence_id, fence, SequenceRecord()))
            return Acquired(None, None, Unreadable(str(damage)))
        lease = Lease(sequence_id, fence, record, number=recent, stored=record.last)
        if record.closed:
            return Acquired(lease)
        is_gone_from_redis = (state is None and head.checkpoint >= 0) or bool(head.log_from and not pieces)
        if is_gone_from_redis and not problem and was_idle:  # it was kept for long enough
            self._close([lease], IDLE)
            record.closed = IDLE
            return Acquired(lease)
        try:
            if problem:
                raise Damaged(f"its state: {_text(problem)}")
            check_state(head, state)
            log = read_latest(head, reversed(pieces))
            if reading is not None and _text(reading) == reading_of(record):
                raise Damaged(ENDS_WORKERS)
        except Damaged as damage:
            return Acquired(lease, None, Unreadable(str(damage)))
        return Acquired(lease, state, None, log)

    def _of_other_version(self, version: bytes, states: bytes, sealed: bytes, members: Any) -> Acquired:
        from ts.sequences.redis.redis_watch import is_served

        name = _text(version)
        try:
            check_version(unpack_head(sealed), version, states)
        except Damaged as damage:
            return Acquired(None, None, Unreadable(str(damage)))
        served = isinstance(members, list) and is_served(name, _text(states), members)
        return Acquired(None, None, OtherVersion(name, served))

    def _give_back(self, lease: Lease) -> None:
        """Let the lease on a sequence that cannot be read run out now."""
        try:
            self._run(self._renew, [lease.sequence_id], lambda: [0, lease.fence])
        except StoreError as error:
            logger.warning("Sequence %r stays with this server for a lease: %s", lease.sequence_id, error)

    def begin_reading(self, leases: Sequence[Lease]) -> None:
        fields = [(each.fence, reading_of(each.record)) for each in leases]
        ids = [each.sequence_id for each in leases]
        self._run(self._note_reading, ids, lambda: [argument for pair in fields for argument in pair])

    def end_reading(self, leases: Sequence[Lease]) -> None:
        ids = [each.sequence_id for each in leases]
        self._run(self._note_reading, ids, lambda: [argument for each in leases for argument in (each.fence, "")])

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        ids = [lease.sequence_id for lease in leases]
        fences = [lease.fence for lease in leases]
        renewed = self._run(self._renew, ids, lambda: [self._lease, *fences])
        for lease, is_renewed in zip(leases, renewed, strict=True):
            if not is_renewed:
                lease.is_behind = lease.stored > 0 and self._regains(lease)
        return [bool(is_renewed) or lease.is_behind for lease, is_renewed in zip(leases, renewed, strict=True)]

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        def arguments() -> list[Any]:
            now = boot_time()
            each = [(lease.fence, _milliseconds(idle_at - now)) for lease, idle_at in released]
            limits = (self._revivable, self._revivable + self._closed_left)
            return [*limits, *(argument for pair in each for argument in pair)]

        self._run(self._release, [lease.sequence_id for lease, _ in released], arguments, copied=True)

    def end(self, leases: Sequence[Lease]) -> None:
        self._close(leases, ENDED)

    def _close(self, leases: Sequence[Lease], reason: str) -> None:
        ids, fences = [lease.sequence_id for lease in leases], [lease.fence for lease in leases]
        self._run(self._end, ids, lambda: [self._closed_left, reason, *fences], copied=True)

    # Commits

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        if not commits:  # of a batch whose steps were all undone
            return []
        most_kept, now = self._settings.kept, boot_time()
        packed = [pack_commit(each, most_kept, now) for each in commits]
        results = self._write([each.lease.sequence_id for each in commits], packed)
        return [self._written(commit, result) for commit, result in zip(commits, results, strict=True)]

    def _written(self, commit: Commit, result: int) -> bool | None:
        """Return whether a commit was written; note in its lease what that says of the store."""
        lease = commit.lease
        if result == _WRITTEN:
            lease.stored, lease.is_behind = lease.record.last, False
            return True
        lease.is_behind = result == _BEHIND or (lease.stored > 0 and self._regains(lease))
        return None if result == _UNCERTAIN and not lease.is_behind else False

    def _write(self, ids: Sequence[str], commits: Sequence[PackedCommit]) -> list[int]:
        limits = (self._lease, self._state_left, self._open_left, self._closed_left, self._most_ids)
        content = _pack((*limits, commits))
        if len(content) > _PORTION and len(ids) > 1:
            half = len(ids) // 2
            return self._write(ids[:half], commits[:half]) + self._write(ids[half:], commits[half:])
        self._connection.check_size(len(content), ids[0])

        results = self._run(self._commit, ids, lambda: [content], copied=True)
        # After a retry, the first try may have been written and another server may have taken over since.
        refused = _UNCERTAIN if self._connection.repeated else _REFUSED
        return [each or refused for each in results]

    def _regains(self, lease: Lease) -> bool:
        """Take a lease again that Redis has lost, with steps that it had acknowledged; return whether that is so.

        While the lease is fresh, nobody can have taken it; so if it is gone, what Redis has is older.
        """
        if boot_time() >= lease.fresh_until:
            return False
        try:
            stored = self.peek(lease.sequence_id)
            if not _is_earlier(stored, lease):
                return False
            (again,) = self.acquire([lease.sequence_id], {lease.sequence_id: -math.inf})
        except (StoreError, Damaged) as error:
            logger.warning("Redis has lost the lease on %r, and cannot be asked why: %s", lease.sequence_id, error)
            return False
        if again.lease is None:
            return False
        if isinstance(again.refusal, OtherVersion) or not _is_earlier(again.lease.record, lease):
            self.release([(again.lease, boot_time() + self._settings.lifetime)])
            return False
        # The commit after next is the first one with this lease: only one that writes all there is can be it.
        lease.fence, lease.commits, lease.number, lease.mark = again.lease.fence, 1, 0, 0
        return True

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        # New leases refuse a write that arrives late.
        ids = [each.lease.sequence_id for each in commits]
        acquired = self.acquire(ids, dict.fromkeys(ids, -math.inf))
        settled = [self._was_written(commit, each) for commit, each in zip(commits, acquired, strict=True)]
        idle_at = boot_time() + self._settings.lifetime
        taken = [(each.lease, idle_at) for each in acquired if each.lease is not None]
        try:
            if taken:
                self.release(taken)
        except StoreError as error:
            logger.warning("Sequences whose commits have failed stay with this server for a lease: %s", error)
        return settled

    def _was_written(self, commit: Commit, acquired: Acquired) -> bool | None:
        if acquired.lease is None:
            return None
        stored, record = acquired.lease.record, commit.lease.record
        if (stored.incarnation, stored.last) < (record.incarnation, commit.kept[-1].step.number):
            return False
        if (stored.incarnation, stored.token) != (record.incarnation, record.token):
            return None
        # Another server may have applied the same steps since, but its answers need not be the same.
        try:
            sequence_id, numbers = commit.lease.sequence_id, [each.step.number for each in commit.kept]
            found = [self.find(sequence_id, stored.incarnation, number) for number in numbers]
        except Damaged:
            return None
        return True if found == [each.answer for each in commit.kept] else None

    # Reading

    def peek(self, sequence_id: str) -> SequenceRecord | None:
        arguments: list[Any] = [self._most_ids]
        result = self._copied(lambda pipe: self._peek([self._keys.of(sequence_id)], arguments, client=pipe))
        if not result:
            return None
        if result[0] != _TAKEN:
            raise Damaged(_text(result[1]))
        return unpack_record(*result[1:], settings=self._settings).record

    def find(self, sequence_id: str, incarnation: int, number: int) -> bytes | None:
        key = self._keys.of(sequence_id)
        fields = self._read(key, KEPT_FIELDS)
        for slot, stored in kept_steps(incarnation, enumerate(fields)):
            if stored.step.number == number and stored.checksum != NO_ANSWER:
                still_kept, answer = self._read(key, [KEPT_FIELDS[slot], ANSWER_FIELDS[slot]], copied=True)
                return check_answer(stored, answer) if still_kept == fields[slot] else None
        return None

    def _read(self, key: str, fields: Sequence[str], *, copied: bool = False) -> Sequence[bytes | None]:
        """Read fields of a hash; ``copied``: and wait until the replicas have them."""
        if copied and self._replicas:
            found: Sequence[bytes | None] = self._copied(lambda pipe: pipe.hmget(key, fields))
        else:
            found = self._call(lambda: self._client.hmget(key, fields))
        return found

    # The rest

    def tidy(self) -> None:
        """Do nothing: commits defer no work."""

    def sweep(self) -> None:
        """Do nothing: abandoned sequences expire in Redis."""

    def watch(self, reports: StoreReports = NO_REPORTS) -> Watch:
        from ts.sequences.redis.redis_watch import RedisWatch

        return RedisWatch(self._settings, self._url, self._keys, self._known_clock, reports)

    def close(self) -> None:
        self._client.close()

    def _read_clock(self) -> None:
        asked_at = boot_time()
        seconds, microseconds = self._client.time()
        self._heard(seconds + microseconds / 1_000_000, asked_at)

    def _heard(self, shown: float, asked_at: float) -> None:
        self._clock.heard(shown, asked_at)
        self._idle_clock.heard(shown, asked_at)

    def _recall_clock(self) -> None:
        """Take over what workers of this machine knew of Redis's clock: a worker that has died may have seen a jump."""
        found: Any = self._client.hget(self._keys.clocks, machine())
        try:
            offset, idle_offset = map(float, (found or b"").split())
        except ValueError:
            return
        self._clock.begin_with(offset)
        self._idle_clock.begin_with(idle_offset)

    def _known_clock(self) -> str:
        return f"{self._clock.offset} {self._idle_clock.offset}"

    def _redis_time(self, moment: float) -> int:
        return _milliseconds(self._clock.shown_at(moment))

    def _run(
        self, script: Any, sequence_ids: Sequence[str], arguments: Callable[[], list[Any]], *, copied: bool = False
    ) -> Any:
        """Run a script.

        Args:
            sequence_ids: Of which sequences.
            arguments: Returns the script's arguments, again for each try.
            copied: Whether to wait until the replicas have what the script has written.
        """
        prefix = self._keys.sequence
        keys = [prefix + each for each in sequence_ids]
        if copied and self._replicas:
            return self._connection.copied(lambda pipe: script(keys, arguments(), client=pipe))[0]
        return self._call(lambda: script(keys, arguments()))

    def _copied(self, ask: Callable[[Any], Any]) -> Any:
        """Send a command that only reads; wait until the replicas have what it has read."""
        if not self._replicas:
            return self._call(lambda: ask(self._client))

        def send(pipe: Any) -> None:
            ask(pipe)
            pipe.set(self._keys.copied, 1, px=_COPIED_LIFETIME)  # the replicas then have everything before it

        return self._connection.copied(send)[0]


def _is_earlier(stored: SequenceRecord | None, lease: Lease) -> bool:
    """Whether Redis has less of a sequence than a lease has brought there, and nothing else."""
    record = lease.record
    if stored is None or not stored.has_begun:
        return True
    if stored.incarnation == record.incarnation:
        return stored.token == record.token and not stored.closed and stored.last < lease.stored
    return stored.incarnation < record.incarnation and record.is_earlier(stored.token)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")
