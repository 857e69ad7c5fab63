"""Converts what earlier releases have stored in Redis, once, when a store of the present format is opened.

A sequence was a hash ``ts:{model/version}:ID`` with the fields token, owner, until, expires, incarnation, steps (how
many followed the first one), closed, state, aside (the state is in ``ts:{model/version}aside:ID``), and for each kept
answer q<slot> (incarnation and request id, with a colon between them) and r<slot>. Slot 0 was that of the first step;
the others took turns.

Nothing of it is lost if the conversion is interrupted, or made by several processes at once: each sequence is converted
by one script, and then by no other. In its place remains, for a while, a lease that never ends: a server of an
earlier release that still runs is told that the sequence is elsewhere.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgpack

from ts.sequences.redis.redis_connection import RedisConnection
from ts.sequences.redis.redis_keys import STATE, Keys
from ts.sequences.redis.redis_record import begun_fields, kept_fields
from ts.sequences.steps.record import KeptStep, SequenceRecord, digest_of, pack_head
from ts.sequences.steps.stores.store import StoreError, StoreSettings

logger = logging.getLogger(__name__)

#: How many keys Redis looks at, and how many sequences are read, at a time.
_SCANNED: Final = 1000
_PORTION: Final = 20
#: The owner of the lease that remains in place of a converted sequence.
_CONVERTED: Final = "converted"
_GLOB: Final = re.compile(r"([\\*?\[\]])")

#: KEYS: the hash, its state, the hash of the earlier format, its state that was put aside. ARGV: the fields of the
#: latter that tell whether it has changed, when it has been idle for too long, the time to live of hash and state (ms),
#: the owner that holds the place and for how long (ms), the state or '', the fields.
#:
#: If a sequence of the same id belonged to several versions of the model, that remains which was used last.
_CONVERT: Final = """
local asked = {'token', 'incarnation', 'steps', 'closed'}
local found = redis.call('HMGET', KEYS[3], unpack(asked))
for index = 1, #asked do
    if found[index] ~= ARGV[index] then return 0 end
end
local other = redis.call('HMGET', KEYS[1], 'fence', 'expires')
if not other[1] or (other[1] == '0' and tonumber(other[2]) < tonumber(ARGV[5])) then
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('HSET', KEYS[1], unpack(cmsgpack.unpack(ARGV[11])))
    redis.call('PEXPIRE', KEYS[1], ARGV[6])
    if ARGV[10] ~= '' then redis.call('SET', KEYS[2], ARGV[10], 'PX', ARGV[7]) end
end
redis.call('DEL', KEYS[3], KEYS[4])
local till = redis.call('TIME')[1] * 1000 + ARGV[9]
redis.call('HSET', KEYS[3], 'token', 0, 'owner', ARGV[8], 'until', till, 'expires', till, 'incarnation', 1,
    'steps', 0, 'closed', '')
redis.call('PEXPIRE', KEYS[3], ARGV[9])
return 1
"""


def convert(connection: RedisConnection, keys: Keys, settings: StoreSettings) -> None:
    """Convert the sequences of a model that an earlier release has stored, unless that was done. Raises StoreError."""
    call, client = connection.call, connection.client
    if call(lambda: client.exists(keys.converted)):
        return
    conversion = _Conversion(connection, keys, settings)
    model = _GLOB.sub(r"\\\1", settings.model)
    cursor, pattern = 0, f"ts:{{{model}/*}}:*"
    while True:
        cursor, names = call(partial(client.scan, cursor, match=pattern, count=_SCANNED))
        for first in range(0, len(names), _PORTION):
            conversion.convert(names[first : first + _PORTION])
        if not cursor:
            break
    try:
        call(lambda: client.set(keys.converted, 1))
    except StoreError as error:
        logger.warning("Sequences of an earlier release will be looked for again: %s", error)
    if conversion.count:
        text = "%d sequences of model %s, stored by an earlier release in Redis at %s, were converted"
        logger.info(text, conversion.count, settings.model, connection.name)


class _Conversion:
    def __init__(self, connection: RedisConnection, keys: Keys, settings: StoreSettings) -> None:
        self.count = 0
        self._connection = connection
        self._keys = keys
        self._settings = settings
        self._script = connection.client.register_script(_CONVERT)
        self._limits = {"lease": round(settings.lease * 1000), "lifetime": round(settings.lifetime * 1000)}
        self._name = re.compile(rf"ts:\{{{re.escape(settings.model)}/(.*?)\}}:(.*)", re.DOTALL)

    def convert(self, names: Iterable[bytes]) -> None:
        """Convert some sequences, those again that a server has changed meanwhile."""
        while names:
            read = self._read(names)
            names = [name for name, found in read.items() if not self._convert(name, found)]

    def _read(self, names: Iterable[bytes]) -> Mapping[bytes, list[Any]]:
        def send() -> list[Any]:
            with self._connection.client.pipeline(transaction=False) as pipe:
                for name in names:
                    aside = _aside(name)
                    pipe.hgetall(name)
                    pipe.pttl(name)
                    pipe.get(aside)
                    pipe.pttl(aside)
                answers: list[Any] = pipe.execute(raise_on_error=False)
                return answers

        answers = self._connection.call(send)
        return {name: answers[4 * index : 4 * index + 4] for index, name in enumerate(names)}

    def _convert(self, name: bytes, found: list[Any]) -> bool:
        """Convert a sequence; return False if it has changed since it was read."""
        old, left, aside, aside_left = found
        if isinstance(old, Exception) or isinstance(aside, Exception):
            logger.warning("%r in Redis is no sequence of an earlier release, and remains there", name)
            return True
        if not old or old.get(b"owner") == _CONVERTED.encode():
            return True
        try:
            version, sequence_id = self._name.fullmatch(name.decode()).groups()  # type: ignore[union-attr]
            state = aside if old.get(b"aside") else old.get(b"state")
            fields = self._fields(old, version, state)
            closed = bool(old[b"closed"])
            unchanged = [old[each] for each in (b"token", b"incarnation", b"steps", b"closed")]
            expires = int(old[b"expires"])
        except Exception as error:  # it may be anything
            logger.warning("%r in Redis is no sequence of an earlier release, and remains there: %r", name, error)
            return True
        if fields is None:
            return True
        remembered = round(self._settings.remembered * 1000)
        state_left = max(aside_left if old.get(b"aside") else left, 1)
        arguments: list[Any] = [
            *(*unchanged, expires, max(left, 1) if closed else max(left, 1) + remembered, state_left, _CONVERTED),
            *(remembered, b"" if state is None or closed else state, msgpack.packb(fields, use_bin_type=False)),
        ]
        keys: list[str | bytes] = [self._keys.of(sequence_id), self._keys.of(sequence_id, STATE), name, _aside(name)]
        done = bool(self._connection.call(lambda: self._script(keys, arguments)))
        self.count += done
        return done

    def _fields(self, old: Mapping[bytes, bytes], version: str, state: bytes | None) -> list[Any] | None:
        """Return the fields of a sequence's hash; None if no step of it was applied."""
        further, kept = int(old[b"steps"]), _kept(old)
        if 1 not in kept and not further and state is None:
            return None
        record = SequenceRecord(int(old[b"incarnation"]), "", version, last=further + 1)
        record.closed = old[b"closed"].decode()
        ids = b"".join(digest_of(step.request_id) for _, (step, _) in sorted(kept.items()))
        record.forgotten_ids = record.last > len(kept)
        lease = {"fence": 0, "owner": old[b"owner"], "until": int(old[b"until"]), "expires": int(old[b"expires"])}
        named = {**lease, **self._limits, "head": pack_head(record, state)}
        fixed = [part for pair in named.items() for part in pair]
        # The reason of the end comes last, since it is not that of a sequence that begins.
        return [*fixed, *begun_fields(record), *kept_fields(record, kept, ids), "closed", record.closed]


def _aside(name: bytes) -> bytes:
    head, brace, sequence_id = name.partition(b"}")
    return head + brace + b"aside" + sequence_id


def _kept(old: Mapping[bytes, bytes]) -> dict[int, tuple[KeptStep, bytes | None]]:
    """Return the kept steps of the latest incarnation, and their answers, by number."""
    further, of = int(old[b"steps"]), old[b"incarnation"]
    ids: dict[int, str] = {}
    for name, value in old.items():
        incarnation, colon, stored_id = value.partition(b":")
        if name[:1] == b"q" and colon and incarnation == of:
            ids[int(name[1:])] = stored_id.decode()
    turns = max(len(ids.keys() - {0}), 1)
    kept: dict[int, tuple[KeptStep, bytes | None]] = {}
    for slot, request_id in ids.items():
        number = 1 if slot == 0 else 1 + further - (further - slot) % turns
        answer, digest = _answer(old.get(b"r%d" % slot, b""))
        kept[number] = KeptStep(number, request_id, digest), answer
    return kept


def _answer(stored: bytes) -> tuple[bytes | None, bytes]:
    """Return an answer, None if it cannot be read, and the digest of the request's body, which was kept with it."""
    try:
        *answer, digest = msgpack.unpackb(stored)
        return msgpack.packb(answer), bytes(digest)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        logger.warning("An answer that an earlier release has stored cannot be read: %r", error)
        return None, b""
