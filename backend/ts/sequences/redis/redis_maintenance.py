"""What an operator does with the Redis store; see `Maintenance`."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import redis

from ts.sequences.redis.redis_connection import RedisConnection
from ts.sequences.redis.redis_examining import Found, Reading, examine
from ts.sequences.redis.redis_keys import DAMAGED, IDS, LOG, SEQUENCE, STATE, Keys, SequenceKey, split
from ts.sequences.redis.redis_record import kept_fields
from ts.sequences.steps.record import record_of, seal, unpack_head
from ts.sequences.steps.server_identity import is_gone
from ts.sequences.steps.state_log import latest_whole, pack_entry
from ts.sequences.steps.stores.maintenance import Change, Examined, Maintenance, Repaired, StoredSequence
from ts.sequences.steps.stores.store import SUSPENDED_SECONDS, StoreError

#: For how long (seconds) commands are tried again, doubled; there is no lease that could run out.
_LEASE: Final = 40.0
#: How many keys Redis looks at, at a time.
_SCANNED: Final = 1000
#: For how long (seconds) it is remembered that a sequence is over, as far as this is not known, and for how long what
#: was set aside is kept.
_REMEMBERED: Final = 86_400.0
_ASIDE: Final = 7 * 86_400.0
#: How often a change is tried while servers change the sequence as well.
_TRIES: Final = 100

#: Called with what can be read of a sequence, returns what is to be written in its place, or None.
_Change = Callable[[Reading | None], StoredSequence | None]


class RedisMaintenance(Maintenance):
    """The sequences of all models in the Redis at a URL. Raises StoreError: it cannot be used."""

    def __init__(self, url: str) -> None:
        self._connection = RedisConnection(url, _LEASE)
        self._client = self._connection.client
        self._connection.call(self._client.ping)

    def examine(self) -> Iterator[Examined]:
        for key in self._keys(SEQUENCE):
            examined = self._examine(key)
            if examined is not None:
                yield examined

    def examine_one(self, model: str, sequence_id: str) -> Examined | None:
        return self._examine(SequenceKey(model, SEQUENCE, sequence_id))

    def _examine(self, key: SequenceKey) -> Examined | None:
        return _examined(examine(key, self._found(key)))

    def other_problems(self) -> Sequence[str]:
        return [
            f"something of {key.model} {key.sequence_id!r} was set aside: see the key {_name(key, DAMAGED)!r}"
            for key in self._keys(DAMAGED)
        ]

    def repair(self) -> Iterator[Repaired]:
        for key in self._keys(SEQUENCE):
            reading, is_changed = self._change(key, lambda found: found.sequence if found and found.problems else None)
            if reading is not None and is_changed:
                done = "; ".join(reading.lost) or "what was lost is dropped, and it continues from what is there"
                yield Repaired(key.model, key.sequence_id, f"{'; '.join(reading.problems)}: {done}")

    def write(self, sequence: StoredSequence, *, replace: bool) -> bool:
        key = SequenceKey(sequence.model, SEQUENCE, sequence.sequence_id)
        there, is_changed = self._change(key, lambda found: sequence if replace or found is None else None)
        # A try whose answer was lost may have written it: no other sequence has its token.
        is_ours = self._connection.repeated and there is not None and there.sequence.head == sequence.head
        return is_changed or is_ours

    def change(self, model: str, sequence_id: str, change: Change) -> None:
        self._change(SequenceKey(model, SEQUENCE, sequence_id), lambda found: change(_examined(found)))

    def holder(self, model: str, sequence_id: str) -> str:
        found = self._found(SequenceKey(model, SEQUENCE, sequence_id))
        if isinstance(found.fields, Exception):
            return ""
        owner = found.fields.get(b"owner", b"").decode(errors="replace")
        until = found.fields.get(b"until", b"0")
        is_over = not until.isdigit() or int(until) <= _milliseconds(found.now)
        return "" if is_over or is_gone(owner) else owner

    def ask(self, model: str, sequence_id: str, holder: str) -> None:
        self._connection.call(partial(self._client.publish, Keys(model).asked + holder, sequence_id))

    def close(self) -> None:
        self._client.close()

    def _keys(self, kind: str) -> Iterator[SequenceKey]:
        cursor = 0
        while True:
            pattern = f"tsq:{{*}}{kind}:*"
            cursor, names = self._connection.call(partial(self._client.scan, cursor, match=pattern, count=_SCANNED))
            for name in names:
                key = split(name)
                if key is not None and key.kind == kind:
                    yield key
            if not cursor:
                return

    def _found(self, key: SequenceKey) -> Found:
        def read() -> Found:
            with self._client.pipeline() as pipe:
                return _read(pipe, key)

        found: Found = self._connection.call(read)
        return found

    def _change(self, key: SequenceKey, change: _Change) -> tuple[Reading | None, bool]:
        """Replace a sequence by what ``change`` returns; return what could be read, and whether it was replaced."""
        for _ in range(_TRIES):
            try:
                changed: tuple[Reading | None, bool] = self._connection.call(partial(self._changed, key, change))
                return changed
            except StoreError as error:
                if not isinstance(error.__cause__, redis.WatchError):
                    raise
        raise StoreError(
            f"Redis at {self._connection.name}: {key.sequence_id!r} is always changed by servers meanwhile"
        )

    def _changed(self, key: SequenceKey, change: _Change) -> tuple[Reading | None, bool]:
        names = [_name(key, kind) for kind in (SEQUENCE, STATE, IDS, LOG)]
        with self._client.pipeline() as pipe, self._client.pipeline() as reader:
            pipe.watch(*names)  # type: ignore[no-untyped-call]
            found = _read(reader, key)
            reading = examine(key, found)
            sequence = change(reading)
            if sequence is None:
                return reading, False
            pipe.multi()
            if isinstance(found.fields, Exception):
                pipe.rename(_name(key, SEQUENCE), _name(key, DAMAGED))
                pipe.pexpire(_name(key, DAMAGED), _milliseconds(_ASIDE))
            _put(pipe, key, sequence, found.now)
            pipe.execute()
        return reading, True


def _examined(reading: Reading | None) -> Examined | None:
    if reading is None:
        return None
    key = reading.key
    return Examined(key.model, key.sequence_id, reading.problems, None if reading.lost else reading.sequence)


def _read(pipe: redis.client.Pipeline, key: SequenceKey) -> Found:
    pipe.time()
    pipe.hgetall(_name(key, SEQUENCE))
    pipe.get(_name(key, STATE))
    pipe.get(_name(key, IDS))
    pipe.lrange(_name(key, LOG), 0, -1)
    pipe.pttl(_name(key, SEQUENCE))
    (seconds, microseconds), fields, state, ids, log, left = pipe.execute(raise_on_error=False)
    return Found(seconds + microseconds / 1_000_000, fields, state, ids, log, max(left, 0) / 1000)


def _put(pipe: redis.client.Pipeline, key: SequenceKey, sequence: StoredSequence, now: float) -> None:
    """Write a sequence in place of what there is."""
    head = unpack_head(sequence.head)
    record = record_of(head, sequence.closed, sequence.tokens, sequence.ids, {})
    kept = {each.step.number: (each.step, each.answer) for each in sequence.answers}
    pieces = kept_fields(record, kept)
    fields: dict[Any, Any] = {
        **{"fence": secrets.randbits(62), "owner": "", "until": 0, "lease": 0},
        **{"lifetime": _milliseconds(max(sequence.time_left, 0)), "expires": _milliseconds(now + sequence.time_left)},
        **{"closed": sequence.closed, "version": head.version, "states": head.state_version, "head": sequence.head},
        **{"earlier": seal(sequence.tokens), "ids": len(sequence.ids)},
        **dict(zip(pieces[::2], pieces[1::2], strict=True)),
        **{"skip": latest_whole(sequence.log) or 0},
    }
    left = max(sequence.time_left, 0) + (0 if sequence.closed else SUSPENDED_SECONDS + _REMEMBERED)
    pipe.delete(*(_name(key, kind) for kind in (SEQUENCE, STATE, IDS, LOG)))
    pipe.hset(_name(key, SEQUENCE), mapping=fields)
    pipe.pexpire(_name(key, SEQUENCE), max(_milliseconds(left), 1))
    if sequence.ids:
        pipe.set(_name(key, IDS), sequence.ids, px=max(_milliseconds(left), 1))
    if sequence.state is not None:
        pipe.set(_name(key, STATE), sequence.state, px=_milliseconds(left - _REMEMBERED))
    if sequence.log:
        pipe.rpush(_name(key, LOG), *(pack_entry(head.incarnation, *each) for each in sequence.log))
        pipe.pexpire(_name(key, LOG), _milliseconds(left - _REMEMBERED))


def _name(key: SequenceKey, kind: str) -> str:
    return f"tsq:{{{key.model}}}{kind}:{key.sequence_id}"


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
