"""Redis as what the servers of a fleet share for their sequences in memory: those that were left, and who has which.

All keys begin with ``torchserve-py:handover:`` and the name of the fleet. Then there is, with the name of a server (16
hex digits) or the key of a sequence at the end:

    servers          a set: all servers
    alive:SERVER     there as long as the server shows that it lives
    has:SERVER       a hash: the marks of the server (`storage`)
    number:SERVER    how often these were changed, by which a server sees that Redis has lost some changes
    wanted:SERVER    a hash: the sequences that the server waits for, as JSON
    left:KEY         a hash: a sequence that was left, its version, and who has written it

Each look is one script, so what is seen and what is told belong together: of two servers that look for one sequence at
the same moment, one has it. A server that Redis does not know any more, or not as it is, tells everything anew, in
parts since Redis serves nobody else during a script, and gives up what others have meanwhile. It takes for granted then
that others have to tell everything, too, and waits for that before it begins a sequence, believes that one is lost, or
gives up what others seem to have again.

A state that was left counts once the server that has written it has told that it has the sequence no more: until then
it may have heard that this has failed, and go on. And Redis may have lost the latest changes, as when a replica takes
over: a server that has taken a state knows what it was, and removes that if it is there again.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import redis

from torchserve_py.core.handover.left_format import packed
from torchserve_py.core.handover.storage import (
    DEAD,
    HAS,
    KEPT,
    LACKS,
    LOST,
    SIGN_INTERVAL,
    WANTED_KEPT,
    Found,
    Known,
    Place,
    Seen,
    Wanted,
)
from ts.protocol.boot_clock import boot_time
from ts.sequences.redis.redis_client import open_client

#: How long Redis may take to answer (seconds).
_LIMIT: Final = 1.5
#: For how long a state is kept that is being written, if its server dies then (milliseconds).
_ABANDONED: Final = 60_000
#: For how long others may have to tell everything anew if this server has to (seconds).
_TELLING: Final = 2 * SIGN_INTERVAL
#: How many keys are looked through at once where all of a model are removed.
_AT_ONCE: Final = 1_000
#: How many marks one script tells.
_TOLD_AT_ONCE: Final = 10_000

#: What the script is told of a sequence that is left, and to be taken by this server: others see `HAS`.
_TO_TAKE: Final = "t"
#: The places, as the script names them.
_PLACES: Final = {b"l": Place.left, b"e": Place.elsewhere, b"x": Place.lost, b"n": Place.nowhere}

_LOOK: Final = """
local p, me, number, count = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local is_whole, is_sign, is_early = ARGV[4] == '1', ARGV[5] == '1', ARGV[6] == '1'
local dead, kept, wanted_kept, is_last, at = ARGV[7], ARGV[8], ARGV[9], ARGV[10] == '1', 11
local has, alive = p .. ':has:' .. me, p .. ':alive:' .. me
if not is_whole then
  local is_known = redis.call('GET', p .. ':number:' .. me) == number and redis.call('HLEN', has) == count
  if not is_known or redis.call('EXISTS', alive) == 0 then return {} end
end
-- Redis has lost changes. Then others may seem to have what they had before.
local is_behind = is_whole and tonumber(redis.call('GET', p .. ':number:' .. me) or 0) < (tonumber(number) or 0)

local others = {}
for _, other in ipairs(redis.call('SMEMBERS', p .. ':servers')) do
  if other ~= me then
    local lives = redis.call('EXISTS', p .. ':alive:' .. other) == 1
    if lives or redis.call('EXISTS', p .. ':has:' .. other) == 1 then
      others[#others + 1] = {p .. ':has:' .. other, lives, other}
    else
      redis.call('SREM', p .. ':servers', other)
    end
  end
end
local function place(key)
  local found = 'n'
  for _, other in ipairs(others) do
    local mark = redis.call('HGET', other[1], key)
    if mark then
      if mark == '+' and other[2] then return 'e' end
      found = 'x'
    end
  end
  return found
end
local function next_group(size)  -- the arguments of a group come after how many there are
  local count, first = tonumber(ARGV[at]), at + 1
  at = first + count * size
  return first, at - 1
end

local usurped, places, left, wanted = {}, {}, {}, {}
local first, last = next_group(2)  -- states that do not count
for i = first, last, 2 do
  if redis.call('HGET', p .. ':left:' .. ARGV[i], 'by') == ARGV[i + 1] then
    redis.call('DEL', p .. ':left:' .. ARGV[i])
  end
end
first, last = next_group(2)
for i = first, last, 2 do
  local key, mark = ARGV[i], ARGV[i + 1]
  if mark == '+' or mark == 't' then
    local by = is_whole and mark == '+' and redis.call('HGET', p .. ':left:' .. key, 'by')
    mark = '+'
    if not is_behind and (place(key) == 'e' or (by and string.sub(by, 1, #me) ~= me)) then
      usurped[#usurped + 1] = key
      mark = '-'
    end
  end
  if mark == '-' then redis.call('HDEL', has, key) else redis.call('HSET', has, key, mark) end
end
local is_change = is_whole or last > first
first, last = next_group(2)
redis.call('DEL', p .. ':wanted:' .. me)
for i = first, last, 2 do
  local key = ARGV[i]
  local found, version = place(key), redis.call('HGET', p .. ':left:' .. key, 'version')
  if version and found ~= 'e' then  -- else who has written it may not know that it has
    found = 'l'
  elseif is_early then
    found = 'e'
  end
  places[#places + 1], left[#left + 1] = found, version or ''
  if found == 'e' then
    redis.call('HDEL', has, key)
    redis.call('HSET', p .. ':wanted:' .. me, key, ARGV[i + 1])
    redis.call('EXPIRE', p .. ':wanted:' .. me, wanted_kept)
  else
    redis.call('HSET', has, key, '+')
  end
  is_change = true
end
if is_change or is_sign then
  redis.call('SET', alive, '', 'EX', dead)
  redis.call('EXPIRE', has, kept)
  redis.call('SADD', p .. ':servers', me)
  redis.call('EXPIRE', p .. ':servers', kept)
end
if is_change and is_last then redis.call('INCR', p .. ':number:' .. me) end
if is_change or is_sign then redis.call('EXPIRE', p .. ':number:' .. me, kept) end
for _, other in ipairs(others) do
  for _, each in ipairs(redis.call('HVALS', p .. ':wanted:' .. other[3])) do wanted[#wanted + 1] = each end
end
return {redis.call('GET', p .. ':number:' .. me), usurped, places, left, wanted, is_behind and 1 or 0}
"""
#: Lets a state that was written count, unless its server was taken for dead.
_APPEAR: Final = """
local p, me, part, key, by = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if redis.call('HGET', p .. ':left:' .. key, 'by') == by then return 1 end
if redis.call('EXISTS', p .. ':alive:' .. me) == 0 or redis.call('EXISTS', part) == 0 then
  redis.call('DEL', part)
  return 0
end
redis.call('RENAME', part, p .. ':left:' .. key)
redis.call('PEXPIRE', p .. ':left:' .. key, ARGV[5])
return 1
"""
_TAKE: Final = """
if redis.call('EXISTS', KEYS[2]) == 0 then
  if redis.call('EXISTS', KEYS[1]) == 0 then return false end
  redis.call('RENAME', KEYS[1], KEYS[2])
end
return redis.call('HMGET', KEYS[2], 'content', 'by')
"""


class HandoverInRedis:
    """The `Lists` and the `LeftStates` of a fleet in Redis.

    Args:
        url: Where Redis is.
        name: The name of the fleet.

    Raises:
        StoreError: The URL is not one of Redis.
    """

    def __init__(self, url: str, name: str = "") -> None:
        opened = open_client(url, _LIMIT)
        self._redis: Any = opened.client
        self._name = opened.name
        self._prefix = f"torchserve-py:handover:{name}"
        self._me = secrets.token_hex(8)
        self._look, self._appear, self._take = map(self._redis.register_script, (_LOOK, _APPEAR, _TAKE))
        #: What the own list is to say, whether Redis says that, too, and what it has counted then, and how many.
        self._marks: dict[str, str] = {}
        self._is_whole, self._number, self._count = False, b"", 0
        #: Until when others may have to tell everything anew, by `boot_time`, and whether what they have is seen then.
        self._early_until, self._is_behind = 0.0, False
        #: When Redis has heard of this server last, and was found to drop nothing, by `boot_time`.
        self._told_at, self._checked_at = 0.0, -math.inf
        #: By the keys of sequences: writes that have failed, but may have been made, and what this server has taken.
        self._doubtful: dict[str, str] = {}
        self._taken: dict[str, str] = {}
        #: What is left, and to be taken by this server.
        self._to_take = set[str]()
        self._noting = threading.Lock()  # these three

    # What servers tell each other.

    def look(self, marks: dict[str, str], sought: Mapping[str, Wanted]) -> Seen:
        changes = {key: mark for key, mark in marks.items() if self._marks.get(key, LACKS) != mark}
        self._note(changes)
        is_due = self._is_behind and boot_time() >= self._early_until
        is_whole, self._is_whole = self._is_whole and not self._doubtful and not is_due, False  # until it is told
        told = self._tell(changes, sought) if is_whole else []
        if not told:
            self._check_keeping()
            if self._number and not is_due:  # it has told everything before, and Redis may have lost that
                self._early_until = boot_time() + _TELLING
            told = self._tell(None, sought)
        self._number, usurped, found, versions, wanted, is_behind = told
        self._is_behind = bool(is_behind) or (self._is_behind and not is_due)
        places = dict(zip(sought, map(_PLACES.__getitem__, found), strict=True))
        self._note({key: LACKS if place is Place.elsewhere else HAS for key, place in places.items()})
        with self._noting:
            self._to_take -= places.keys()
            self._to_take |= {key for key, place in places.items() if place is Place.left}
        given_up = [key.decode() for key in usurped]
        self._note(dict.fromkeys(given_up, LACKS))
        self._is_whole, self._count = True, len(self._marks)
        left = {
            key: Found(version.decode(errors="replace"), key)
            for (key, place), version in zip(places.items(), versions, strict=True)
            if place is Place.left
        }
        return Seen(places, left, [each for each in map(_wanted_in, wanted) if each is not None], given_up, None)

    def _tell(self, changes: dict[str, str] | None, sought: Mapping[str, Wanted]) -> list[Any]:
        """Tell changes, or everything; return what Redis says to that, nothing if it does not know this server so."""
        with self._noting:
            doubtful = {} if changes is not None else dict(self._doubtful)
            void = [] if changes is not None else [*doubtful.items(), *self._taken.items()]
            to_take = dict.fromkeys([key for key in self._to_take if self._marks.get(key) == HAS], _TO_TAKE)
        now = boot_time()
        is_sign = now - self._told_at >= SIGN_INTERVAL
        wanted = [(key, json.dumps(each)) for key, each in sought.items()]
        if changes is None:
            has = self._call(lambda: self._redis.hkeys(f"{self._prefix}:has:{self._me}"))
            marks = dict.fromkeys(map(bytes.decode, has), LACKS) | self._marks | to_take
        else:
            marks = changes
        usurped: list[bytes] = []
        parts = _parts(marks, _TOLD_AT_ONCE if changes is None else len(marks))
        for part in parts:
            is_last = part is parts[-1]
            arguments: list[Any] = [
                self._me,
                self._number,
                self._count,
                int(changes is None),
                int(is_sign),
                int(now < self._early_until),
                int(DEAD + SIGN_INTERVAL),
                int(KEPT),
                int(WANTED_KEPT),
                int(is_last),
            ]
            for group in (void if part is parts[0] else [], part, wanted if is_last else []):
                arguments.append(len(group))
                for pair in group:
                    arguments += pair
            told: list[Any] = self._call(partial(self._look, [self._prefix], arguments))
            if told:
                usurped += told[1]
        if told:
            told[1] = usurped
        if (told and is_sign) or changes is None:
            self._told_at = now
        with self._noting:
            for key, by in doubtful.items():
                if self._doubtful.get(key) == by:
                    del self._doubtful[key]
        return told

    def _note(self, marks: Mapping[str, str]) -> None:
        for key, mark in marks.items():
            if mark == LACKS:
                self._marks.pop(key, None)
                with self._noting:
                    self._taken.pop(key, None)
                    self._to_take.discard(key)
            else:
                self._marks[key] = mark

    def names(self, key: str) -> bool:
        return key in self._marks

    def place(self, key: str) -> Place:
        """Return that it is nowhere: what others have only Redis knows."""
        return Place.nowhere

    def end(self, lost: Iterable[str]) -> None:
        marks = dict.fromkeys(lost, LOST)
        has = f"{self._prefix}:has:{self._me}"

        def tell() -> None:
            with self._redis.pipeline() as pipe:
                pipe.delete(has, *(f"{self._prefix}:{kind}:{self._me}" for kind in ("alive", "number", "wanted")))
                if marks:
                    pipe.hset(has, mapping=marks)
                    pipe.expire(has, int(KEPT))
                else:
                    pipe.srem(f"{self._prefix}:servers", self._me)
                pipe.execute()

        self._call(tell)

    # What was left.

    def all(self) -> dict[str, Found]:
        """Return nothing: others may have all of it. What is over Redis removes."""
        return {}

    def write(self, key: str, known: Known, given: Iterable[bytes], counts: Callable[[], bool]) -> None:
        self._check_keeping()
        by, rest = f"{self._me} {secrets.token_hex(8)}", known.ends_at - time.time()
        known = known._replace(ends_at=math.inf)  # Redis removes what is over, by no clock of a server
        part, content = f"{self._prefix}:part:{by}", b"".join(packed(known, given))

        def upload() -> None:
            with self._redis.pipeline() as pipe:
                pipe.hset(part, mapping={"version": known.version, "content": content, "by": by})
                pipe.pexpire(part, _ABANDONED)
                pipe.execute()

        self._call(upload)
        if not counts():
            self._call(lambda: self._redis.delete(part))
            return
        limit = max(1, int(rest * 1000))
        try:
            appears = self._call(lambda: self._appear([self._prefix], [self._me, part, key, by, limit]))
        except OSError:
            with self._noting:
                self._doubtful[key] = by
            raise
        if not appears:
            raise OSError("other servers take this one for dead")

    def take(self, key: str, taken: str) -> bytes | None:
        found: list[bytes | None] | None = self._call(lambda: self._take([self._left(key), self._left(taken)]))
        content, by = found or (None, None)
        if by is not None:
            with self._noting:
                self._taken[key] = by.decode(errors="replace")
                self._to_take.discard(key)
        return content

    def rename(self, key: str, other: str) -> None:
        with self._noting:
            self._taken.pop(other, None)
        self._call(lambda: self._redis.renamenx(self._left(key), self._left(other)))

    def remove(self, keys: Iterable[str]) -> None:
        names = [self._left(key) for key in keys]
        self._call(lambda: self._redis.delete(*names))

    def drop(self, model: str) -> None:
        def remove() -> None:
            for name in self._redis.scan_iter(self._left(f"{model}/*"), _AT_ONCE):
                self._redis.delete(name)

        self._call(remove)

    def _left(self, key: str) -> str:
        return f"{self._prefix}:left:{key}"

    def _check_keeping(self) -> None:
        """Raise OSError if Redis may drop keys when its memory is full: those here have time limits.

        To ask takes as long as to write a small state, so it is asked once a second.
        """
        if (now := boot_time()) - self._checked_at < SIGN_INTERVAL:
            return
        memory = self._call(self._memory)
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        if policy != "noeviction" and memory.get("maxmemory"):
            why = f"maxmemory-policy {policy}, by which it drops sequences when its memory is full"
            raise OSError(f"Redis at {self._name} has {why}. Set maxmemory-policy noeviction.")
        self._checked_at = now

    def _memory(self) -> dict[str, Any]:
        try:
            memory: dict[str, Any] = self._redis.info("memory")
        except redis.ResponseError:  # a managed one may say nothing of itself
            return {}
        return memory

    def _call(self, command: Callable[[], Any]) -> Any:
        """Run a command, once more if its connection breaks, which says nothing of Redis. Raises OSError."""
        try:
            try:
                return command()
            except redis.ConnectionError:
                return command()  # each command here may be sent twice
        except redis.RedisError as error:
            raise OSError(f"Redis at {self._name} cannot be used: {error}") from error


def _parts(marks: Mapping[str, str], size: int) -> list[list[tuple[str, str]]]:
    pairs = list(marks.items())
    return [pairs[first : first + size] for first in range(0, len(pairs), size or 1)] or [[]]


def _wanted_in(text: bytes) -> Wanted | None:
    """Return what another server asks for; None if that makes no sense."""
    try:
        wanted = Wanted(*json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    return wanted if isinstance(wanted.model, str) and isinstance(wanted.sequence_id, str) else None
