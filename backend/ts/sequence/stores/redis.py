"""Sequences in Redis: for several machines, each of which can go on where another one stopped.

A sequence is one hash, ``ts:{model/version}:id``; the braces keep a model's sequences in one slot of a cluster. It
expires by itself. When the sequence has been idle for too long, its state is put aside (``ts:{model/version}aside:id``)
and expires sooner. Each operation is one script over all sequences of a batch: one round trip, and atomic.

Redis keeps data across its own restart only if configured so: with ``appendonly yes`` commits survive the death of the
process, with ``appendfsync always`` also a crash of the machine. Redis copies data to its replicas after it has
answered, so a promoted replica may lack the latest commits. With ``replicas``, a write that an answer relies on
succeeds once that many replicas have it (``WAIT``, sent in the same pipeline, because it covers the writes of its own
connection). If the replicas do not have the write in time, it may be lost, so the store does not report success. Leases
are taken that way, too: a former primary that does not know yet that it was replaced has no replicas, and what it says
of a sequence may be old.

If the connection breaks, the store retries the operation for a limited time, so every operation is safe to run twice.
"""

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgpack

from ts.protocol.server_identity import is_gone
from ts.sequence.stores.redis_scripts import ACQUIRE, COMMIT, END, RELEASE, RENEW
from ts.sequence.stores.store import (
    FIRST_SLOT,
    JUST_NOW,
    REMEMBERED_SECONDS,
    REVIVABLE_SECONDS,
    Acquired,
    Commit,
    Lease,
    Store,
    StoreError,
    StoreSettings,
)

#: The part of the time for an answer in which the replicas must have a write.
_COPY_SHARE = 0.8
#: The lifetime of the key that is written only to wait for the replicas (ms).
_MARKER_LIFETIME = 60_000


class RedisStore(Store):
    """Sequences in the Redis database at ``url``.

    Raises StoreError: the package ``redis`` is missing, the database cannot be reached, or it may drop sequences
    by itself.

    Args:
        replicas: The number of replicas that must have a commit before it succeeds.
    """

    def __init__(self, settings: StoreSettings, url: str, *, replicas: int = 0) -> None:
        try:
            from ts.sequence.stores.redis_connection import RedisConnection
        except ModuleNotFoundError as error:
            raise StoreError("store: redis needs the package redis: install torchserve-py[redis]") from error
        self._settings = settings
        self._prefix, self._aside = f"ts:{{{settings.model}}}:", f"ts:{{{settings.model}}}aside:"
        self._lease, self._lifetime = _milliseconds(settings.lease), _milliseconds(settings.lifetime)
        self._remembered, self._revivable = _milliseconds(REMEMBERED_SECONDS), _milliseconds(REVIVABLE_SECONDS)
        self._open_for = self._lifetime + self._remembered
        self._connection: RedisConnection = RedisConnection(url, settings.lease)
        self._call, self._client, self._name = self._connection.call, self._connection.client, self._connection.name
        self._replicas, self._copy_limit = replicas, self._connection.answer_limit * _COPY_SHARE
        self._acquire, self._renew, self._release, self._commit, self._end = map(
            self._client.register_script, (ACQUIRE, RENEW, RELEASE, COMMIT, END)
        )
        #: What Redis's clock shows (seconds) when the monotonic clock shows 0. It may be too low by the time that an
        #: answer takes; sequences then count as active for that much longer.
        self._redis_clock = 0.0
        self._call(self._read_clock)
        check_keeping(self._name, self._info(), replicas)

    def acquire(self, sequence_ids: Sequence[str], active_since: Mapping[str, float] = JUST_NOW) -> list[Acquired]:
        acquired = self._acquire_all(sequence_ids, active_since, gone="")
        for index, (owner, _) in enumerate(acquired):
            if owner is not None and is_gone(owner):
                (acquired[index],) = self._acquire_all(sequence_ids[index : index + 1], active_since, gone=owner)
        return [each for _, each in acquired]

    def _acquire_all(
        self, sequence_ids: Sequence[str], active_since: Mapping[str, float], gone: str
    ) -> list[tuple[str | None, Acquired]]:
        """Return for each sequence the owner that holds it, or None, and the result of asking for it."""
        settings = self._settings
        tokens = [secrets.randbits(62) for _ in sequence_ids]
        limits = (self._lease, self._lifetime, self._open_for, self._remembered, settings.kept, gone)
        since = [active_since.get(each, time.monotonic()) for each in sequence_ids]

        def arguments() -> list[Any]:
            if self._connection.repeated:  # perhaps another Redis, with another clock
                self._read_clock()
            moments = [_milliseconds(max(0.0, self._redis_clock + each)) for each in since]
            return [settings.owner, *limits, *(each for pair in zip(tokens, moments, strict=True) for each in pair)]

        now, results = self._run(self._acquire, sequence_ids, arguments, copied=True, aside=True)
        self._redis_clock = now / 1000 - time.monotonic()
        return [
            self._acquired(sequence_id, token, result)
            for sequence_id, token, result in zip(sequence_ids, tokens, results, strict=True)
        ]

    def _read_clock(self) -> None:
        seconds, microseconds = self._client.time()
        self._redis_clock = seconds + microseconds / 1_000_000 - time.monotonic()

    def _acquired(self, sequence_id: str, token: int, result: list[Any]) -> tuple[str | None, Acquired]:
        if not result[0]:
            return result[1].decode(), Acquired(None, None)
        _, steps, closed, state, incarnation, requests = result
        ids = [_id_of(request, incarnation) for request in requests]
        kept_ids = {FIRST_SLOT + index: each for index, each in enumerate(ids) if each is not None}
        lease = Lease(sequence_id, token, self._settings.kept, kept_ids, int(incarnation), int(steps), closed.decode())
        return None, Acquired(lease, state)

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        ids = [lease.sequence_id for lease in leases]
        return list(map(bool, self._run(self._renew, ids, lambda: [self._lease, *(lease.token for lease in leases)])))

    def commit(self, commits: Sequence[Commit]) -> list[bool | None]:
        content = [
            (
                str(lease.token),
                lease.incarnation,
                lease.further_steps,
                closed,
                False if state is None else state,
                kept,
            )
            for lease, state, closed, kept in commits
        ]
        limits = (self._lease, self._lifetime, self._open_for, self._remembered)
        ids = [each.lease.sequence_id for each in commits]
        packed = msgpack.packb(content, use_bin_type=False)
        results = self._run(self._commit, ids, lambda: [*limits, packed], copied=True)
        # After a retry, the first try may have been written and another server may have taken over since.
        refused = None if self._connection.repeated else False
        return [True if written else refused for written in results]

    def settle(self, commits: Sequence[Commit]) -> list[bool | None]:
        # New leases refuse a write that arrives late.
        ids = [each.lease.sequence_id for each in commits]
        asked = self._acquire_all(ids, dict.fromkeys(ids, -math.inf), gone="")
        acquired = [each for _, each in asked]
        settled: list[bool | None] = []
        for commit, (lease, _) in zip(commits, acquired, strict=True):
            if lease is not None and lease.incarnation <= commit.lease.incarnation:
                same = lease.incarnation == commit.lease.incarnation
                settled.append(same and lease.has_applied(commit.kept[0][1]))
            else:  # another server has the sequence, or has had it meanwhile
                settled.append(None)
        over = [lease for lease, _ in acquired if lease is not None and lease.closed]
        if over:
            self.release([(lease, time.monotonic()) for lease in over])
        return settled

    def find(self, sequence_id: str, request_id: str, incarnation: int | None = None) -> bytes | None:
        key, slots = self._prefix + sequence_id, range(FIRST_SLOT, self._settings.kept + 1)
        names = ["incarnation", *(f"q{slot}" for slot in slots)]
        latest, *ids = self._call(lambda: self._client.hmget(key, names))
        if latest is None or incarnation not in {None, int(latest)}:
            return None
        for slot, stored in zip(slots, ids, strict=True):
            if _id_of(stored, latest) == request_id:
                still_stored, answer = self._read_copied(key, [f"q{slot}", f"r{slot}"])
                found: bytes | None = answer if still_stored == stored else None
                return found
        return None

    def end(self, leases: Sequence[Lease]) -> None:
        ids = [lease.sequence_id for lease in leases]
        self._run(self._end, ids, lambda: [self._remembered, *(lease.token for lease in leases)], copied=True)

    def release(self, released: Sequence[tuple[Lease, float]]) -> None:
        def arguments() -> list[Any]:
            now = time.monotonic()
            each = [(lease.token, _milliseconds(idle_at - now)) for lease, idle_at in released]
            return [self._revivable, self._remembered, *(argument for pair in each for argument in pair)]

        self._run(self._release, [lease.sequence_id for lease, _ in released], arguments, copied=True, aside=True)

    def tidy(self) -> None:
        """Do nothing: commits defer no work."""

    def sweep(self) -> None:
        """Do nothing: abandoned sequences expire in Redis."""

    def close(self) -> None:
        self._client.close()

    def _run(
        self,
        script: Any,
        sequence_ids: Sequence[str],
        arguments: Callable[[], list[Any]],
        *,
        copied: bool = False,
        aside: bool = False,
    ) -> Any:
        """Run a script.

        Args:
            sequence_ids: Of which sequences.
            arguments: Returns the script's arguments, anew for each try.
            copied: Whether to wait until the replicas have what the script has written.
            aside: Whether the script also gets the keys of states that are put aside.
        """
        keys = [self._prefix + sequence_id for sequence_id in sequence_ids]
        if aside:
            keys += [self._aside + sequence_id for sequence_id in sequence_ids]
        if copied and self._replicas:
            return self._copied(lambda pipe: script(keys, arguments(), client=pipe))
        return self._call(lambda: script(keys, arguments()))

    def _read_copied(self, key: str, fields: list[str]) -> list[bytes | None]:
        """Read fields, and wait until the replicas have them."""
        if not self._replicas:
            read: list[bytes | None] = self._call(lambda: self._client.hmget(key, fields))
            return read

        def ask(pipe: Any) -> None:
            pipe.hmget(key, fields)
            pipe.set(
                self._prefix.removesuffix(":"), 1, px=_MARKER_LIFETIME
            )  # the replicas then have everything before it

        found: list[bytes | None] = self._copied(ask)
        return found

    def _copied(self, ask: Callable[[Any], Any]) -> Any:
        """Send commands, the last of which writes, and wait until the replicas have that; return the first's result."""

        def send() -> list[Any]:
            with self._client.pipeline(transaction=False) as pipe:
                ask(pipe)
                pipe.wait(self._replicas, _milliseconds(self._copy_limit))
                results: list[Any] = pipe.execute()
                return results

        results = self._call(send)
        copies, place = results[-1], f"Redis at {self._name}"
        if copies < self._replicas:
            text = f"{copies} of {self._replicas} replicas of {place} had it after {self._copy_limit:g} s"
            raise StoreError(f"{text}; handler.cache.replicas says how many are to have it")
        return results[0]

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for section in ("memory", "persistence", "replication"):
            with contextlib.suppress(StoreError):  # a managed Redis may refuse
                info.update(self._call(partial(self._client.info, section)))
        return info


def _id_of(stored: bytes | None, incarnation: bytes) -> str | None:
    """Return the request id of a kept answer if the answer is of that incarnation, else None."""
    if stored is None:
        return None
    of, _, request_id = stored.partition(b":")
    return request_id.decode() if of == incarnation else None


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


logger = logging.getLogger(__name__)

_KEEPS_ALL: Final = "noeviction"


def check_keeping(name: str, info: Mapping[str, Any], replicas: int) -> None:
    """Refuse a Redis that may drop sequences by itself; warn of what else may lose them.

    Raises StoreError: it drops keys when its memory is full.

    Args:
        name: What the Redis is called in messages.
        info: What its sections memory, persistence and replication say; absent values are unknown.
    """
    policy = info.get("maxmemory_policy")
    if policy is None:
        logger.warning("Redis at %s does not tell its maxmemory-policy. Make sure that it is %s.", name, _KEEPS_ALL)
    elif policy != _KEEPS_ALL:
        raise StoreError(
            f"Redis at {name} has maxmemory-policy {policy}: it would drop sequences when its memory is full, and"
            f" acknowledged steps with them. Set maxmemory-policy {_KEEPS_ALL}"
        )
    if info.get("aof_enabled") == 0:
        logger.warning("Redis at %s has appendonly no: sequences are lost when it ends. Set appendonly yes.", name)
    connected = info.get("connected_slaves", replicas)
    if connected < replicas:
        text = "Redis at %s has %d replicas now, and a step is answered only once %d have it (handler.cache.replicas)."
        logger.warning(text, name, connected, replicas)
