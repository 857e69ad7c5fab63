"""Sequences in Redis: for several machines, each of which can go on where another one stopped.

A sequence is one hash, ``ts:{model/version}:id``; the braces keep a model's sequences in one slot of a cluster. It
expires by itself. Each operation is one script over all sequences of a batch: one round trip, and atomic.

Redis survives its own restart only if it is configured to: ``appendonly yes`` keeps what was committed when the process
dies, with ``appendfsync always`` also when the machine does.

When the connection breaks, the operation is tried again for `_RETRY_LIMIT` seconds: every one may be done twice.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack

from ts.protocol.server_identity import is_gone
from ts.sequence.stores.store import IDLE, REMEMBERED_SECONDS, Acquired, Commit, Lease, StoreError, StoreSettings

logger = logging.getLogger(__name__)

#: Seconds to wait for an answer, to go on trying when there is none, and to pause in between.
_ANSWER_LIMIT = 5.0
_RETRY_LIMIT = 20.0
_RETRY_PAUSE = 0.1

_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

# ARGV: owner, lease, lifetime, time to live (ms), kept answers, an owner who is gone or '', then a token for each key.
_ACQUIRE = f"""{_NOW}
local names = {{'owner', 'until', 'expires', 'steps', 'closed', 'state'}}
for slot = 0, ARGV[5] - 1 do names[#names + 1] = 'q' .. slot end
local results = {{}}
for i, key in ipairs(KEYS) do
    local found = redis.call('HMGET', key, unpack(names))
    local owner, till, expires, steps, closed, state = unpack(found, 1, 6)
    if owner and owner ~= '' and owner ~= ARGV[1] and owner ~= ARGV[6] and tonumber(till) > now then
        results[i] = {{0, owner}}
    else
        if not owner then
            expires, steps, closed = now + ARGV[3], '0', ''
            redis.call('HSET', key, 'expires', expires, 'steps', steps, 'closed', closed)
            redis.call('PEXPIRE', key, ARGV[4])
        elseif closed == '' and tonumber(expires) <= now then
            closed = '{IDLE}'
        end
        redis.call('HSET', key, 'token', ARGV[6 + i], 'owner', ARGV[1], 'until', now + ARGV[2])
        local requests = {{}}
        for slot = 1, ARGV[5] do requests[slot] = found[6 + slot] end
        results[i] = {{1, steps, closed, closed == '' and state, requests}}
    end
end
return results
"""

# ARGV: until how long from now, then a token for each key.
_RENEW = f"""{_NOW}
local results = {{}}
for i, key in ipairs(KEYS) do
    results[i] = 0
    if redis.call('HGET', key, 'token') == ARGV[1 + i] then
        redis.call('HSET', key, 'until', now + ARGV[1])
        results[i] = 1
    end
end
return results
"""

# ARGV: lease, lifetime, time to live of an open sequence, of a closed one (ms), then for each key in msgpack:
# [token, steps, closed, state or false, [[slot, request id, answer], …]].
_COMMIT = f"""{_NOW}
local commits = cmsgpack.unpack(ARGV[5])
local results = {{}}
for i, key in ipairs(KEYS) do
    local token, steps, closed, state, answers = unpack(commits[i], 1, 5)
    results[i] = 0
    if redis.call('HGET', key, 'token') == token then
        local fields = {{'until', now + ARGV[1], 'expires', now + ARGV[2], 'steps', steps, 'closed', closed}}
        if state then
            fields[#fields + 1], fields[#fields + 2] = 'state', state
        else
            redis.call('HDEL', key, 'state')
        end
        for _, answer in ipairs(answers) do
            fields[#fields + 1], fields[#fields + 2] = 'q' .. answer[1], answer[2]
            fields[#fields + 1], fields[#fields + 2] = 'r' .. answer[1], answer[3]
        end
        redis.call('HSET', key, unpack(fields))
        redis.call('PEXPIRE', key, closed == '' and ARGV[3] or ARGV[4])
        results[i] = 1
    end
end
return results
"""

# ARGV: time to live (ms), then for each key its token and why it is over.
_END = """
for i, key in ipairs(KEYS) do
    if redis.call('HGET', key, 'token') == ARGV[2 * i] then
        redis.call('HDEL', key, 'state')
        redis.call('HSET', key, 'closed', ARGV[2 * i + 1], 'until', 0)
        redis.call('PEXPIRE', key, ARGV[1])
    end
end
"""


class RedisStore:
    """Sequences in the Redis database at ``url``.

    Raises:
        StoreError: The package ``redis`` is missing, or the database cannot be reached.
    """

    def __init__(self, settings: StoreSettings, url: str) -> None:
        try:
            import redis
        except ModuleNotFoundError as error:
            raise StoreError("store: redis needs the package redis: install torchserve-py[redis]") from error
        self._settings = settings
        self._prefix = f"ts:{{{settings.model}}}:"
        self._lease, self._lifetime = _milliseconds(settings.lease), _milliseconds(settings.lifetime)
        self._remembered = _milliseconds(REMEMBERED_SECONDS)
        try:
            client = redis.Redis.from_url(url, socket_timeout=_ANSWER_LIMIT, socket_connect_timeout=_ANSWER_LIMIT)
        except ValueError as error:
            raise StoreError(f"the url of the sequence store is not one of Redis: {error}") from error
        self._client = client
        where = client.connection_pool.connection_kwargs
        self._name = where.get("path") or f"{where.get('host', 'localhost')}:{where.get('port', 6379)}"
        self._broken = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.BusyLoadingError)
        self._error = redis.RedisError
        scripts = (_ACQUIRE, _RENEW, _COMMIT, _END)
        self._acquire, self._renew, self._commit, self._end = (client.register_script(each) for each in scripts)
        self._call(client.ping)
        self._warn_of_loss()

    def acquire(self, sequence_ids: Sequence[str]) -> list[Acquired]:
        """Take leases and read; see `Store`."""
        acquired = self._acquire_all(sequence_ids, gone="")
        for index, (owner, _) in enumerate(acquired):
            if owner is not None and is_gone(owner):
                (acquired[index],) = self._acquire_all(sequence_ids[index : index + 1], gone=owner)
        return [each for _, each in acquired]

    def _acquire_all(self, sequence_ids: Sequence[str], gone: str) -> list[tuple[str | None, Acquired]]:
        """The owner who holds a sequence, or None, and what came of asking for it."""
        settings = self._settings
        tokens = [secrets.randbits(62) for _ in sequence_ids]
        limits = (self._lease, self._lifetime, self._lifetime + self._remembered, settings.kept, gone)
        results = self._run(self._acquire, sequence_ids, [settings.owner, *limits, *tokens])
        return [
            self._acquired(sequence_id, token, result)
            for sequence_id, token, result in zip(sequence_ids, tokens, results, strict=True)
        ]

    def _acquired(self, sequence_id: str, token: int, result: list[Any]) -> tuple[str | None, Acquired]:
        if not result[0]:
            return result[1].decode(), Acquired(None, None, "")
        _, steps, closed, state, requests = result
        count, kept = int(steps), self._settings.kept
        # The slot that is written next is the oldest.
        slots = sorted(range(len(requests)), key=lambda slot: (slot - count) % kept)
        request_ids = [requests[slot].decode() for slot in slots if requests[slot] is not None]
        lease = Lease(sequence_id, self._prefix + sequence_id, token, count, request_ids, self._settings)
        return None, Acquired(lease, state, closed.decode())

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Prolong leases; see `Store`."""
        return self._renewed(leases, self._lease)

    def _renewed(self, leases: Sequence[Lease], milliseconds: int) -> list[bool]:
        ids = [lease.sequence_id for lease in leases]
        return list(map(bool, self._run(self._renew, ids, [milliseconds, *(lease.token for lease in leases)])))

    def commit(self, commits: Sequence[Commit]) -> list[bool]:
        """Write what sequences have become; see `Store`."""
        content = [
            (str(lease.token), lease.steps, closed, False if state is None else state, answers)
            for lease, state, closed, answers in commits
        ]
        limits = (self._lease, self._lifetime, self._lifetime + self._remembered, self._remembered)
        ids = [each.lease.sequence_id for each in commits]
        return list(map(bool, self._run(self._commit, ids, [*limits, msgpack.packb(content, use_bin_type=False)])))

    def answer(self, lease: Lease, request_id: str) -> bytes | None:
        """Return a kept answer; see `Store`."""
        key, kept = self._prefix + lease.sequence_id, self._settings.kept
        ids = self._call(lambda: self._client.hmget(key, [f"q{slot}" for slot in range(kept)]))
        for slot, stored in enumerate(ids):
            if stored == request_id.encode():
                found: bytes | None = self._call(partial(self._client.hget, key, f"r{slot}"))
                return found
        return None

    def end(self, ended: Sequence[tuple[Lease, str]]) -> None:
        """Drop states; see `Store`."""
        tokens = [argument for lease, reason in ended for argument in (lease.token, reason)]
        self._run(self._end, [lease.sequence_id for lease, _ in ended], [self._remembered, *tokens])

    def release(self, leases: Sequence[Lease]) -> None:
        """Let leases go; see `Store`."""
        self._renewed(leases, 0)

    def tidy(self) -> None:
        """Nothing to do: a commit puts nothing off."""

    def sweep(self) -> None:
        """Nothing to do: what is abandoned expires in Redis."""

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _run(self, script: Any, sequence_ids: Sequence[str], arguments: list[Any]) -> Any:
        keys = [self._prefix + sequence_id for sequence_id in sequence_ids]
        return self._call(lambda: script(keys, arguments))

    def _call(self, command: Callable[[], Any]) -> Any:
        """Do it, again and again while the connection is broken or Redis starts."""
        end = time.monotonic() + _RETRY_LIMIT
        while True:
            try:
                return command()
            except self._broken as error:
                if time.monotonic() > end:
                    raise StoreError(f"Redis at {self._name} does not answer: {error}") from error
                time.sleep(_RETRY_PAUSE)
            except self._error as error:
                raise StoreError(f"Redis at {self._name} refuses: {error}") from error

    def _warn_of_loss(self) -> None:
        try:
            setting = self._call(lambda: self._client.config_get("appendonly"))
        except StoreError:  # a managed Redis does not tell
            return
        if setting.get("appendonly") == "no":
            logger.warning(
                "Redis at %s has appendonly no: sequences are lost when it ends. Set appendonly yes.", self._name
            )


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
