"""The stores of a simulated world: the real code over SQLite and over fakeredis, with points and troubles beneath it.

Beneath a store every transaction has points at which its process may be frozen or killed, and while there is trouble
its commands fail: the disk is full, the answer of Redis is lost, or Redis runs a command after its sender has given up.
"""

import contextlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import redis
from tests.simulation.redis_double import SERVER, FakeRedis
from tests.simulation.threads import Ears, Event, Lock
from tests.simulation.world import Killed, Machine, Process, World

from ts.sequences.redis import redis_client, redis_watch
from ts.sequences.sqlite import file_store as file
from ts.sequences.sqlite import file_watch, sqlite_file
from ts.sequences.steps import stored_opening

#: The statements of SQLite that have points, by their first word.
_POINTS: Final = {
    "BEGIN": ("before a transaction", "in a transaction"),
    "COMMIT": ("before COMMIT", "after COMMIT"),
    "INSERT": ("before a write", "after a write"),
}
#: How long to pause between two tries for the file's lock: longer than in reality, where a look costs less (seconds).
_PAUSES: Final = (0.0002, 1.0)
#: For how long a subscription listens at a time (seconds).
_LOOK: Final = 3.0
#: How much longer everybody listens at a time where nothing has to be told meanwhile.
_SLOWNESS: Final = 100.0
#: While there is trouble, how many of the commands fail.
_SHARE: Final = 0.7
#: How much later than it was sent Redis may run a command (seconds), at most.
_LATEST: Final = 30.0


class Trouble:
    """Whether the store is in trouble, and what comes of that."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.until = 0.0

    def strikes(self) -> bool:
        """Whether the command that is about to run fails."""
        return self.until > self._world.now and self._world.random.random() < _SHARE


@contextlib.contextmanager
def simulated_stores(world: World, trouble: Trouble, path: Path, *, versions: int) -> Iterator[None]:
    """Let every store that a worker of this world opens have points and troubles.

    Args:
        path: That of the file of a store.
        versions: How many versions of the model there are. If it is one, nobody asks whether it is served, and it need
            not be told so often.
    """
    open_store = stored_opening.open_store
    ears = Ears(world, slowness=1.0 if versions > 1 else _SLOWNESS)
    client = _redis_client(world, trouble, ears)
    ask = file_watch.ask

    def ask_and_wake(*given: Any) -> None:
        ask(*given)
        ears.ring()

    threading = SimpleNamespace(Lock=lambda: Lock(world, ears), Event=lambda: Event(world))
    path.parent.mkdir()
    try:
        with (
            mock.patch.object(stored_opening, "open_store", lambda *given: _Pointed(world, open_store(*given))),
            mock.patch.object(sqlite3, "connect", _connect(world, trouble)),
            mock.patch.object(sqlite_file, "_PAUSES", _PAUSES),
            mock.patch.object(file, "ask", ask_and_wake),
            mock.patch.object(file_watch, "connection", SimpleNamespace(wait=ears.wait)),
            mock.patch.object(file_watch, "threading", threading),
            mock.patch.object(redis_watch, "threading", threading),
            mock.patch.object(redis_client, "_open_one", lambda *_: redis_client.Opened(client, "redis", None)),
        ):
            yield
    finally:
        shutil.rmtree(path.parent)


class _Pointed:
    """A store whose operations have a point before and a point behind them."""

    def __init__(self, world: World, store: Any) -> None:
        self._world, self._store = world, store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        point = self._world.point

        def call(*given: Any, **named: Any) -> Any:
            point(f"before {name}")
            result = found(*given, **named)
            point(f"after {name}")
            return result

        setattr(self, name, call)
        return call


# SQLite


def _connect(world: World, trouble: Trouble) -> Callable[..., sqlite3.Connection]:
    class Connection(sqlite3.Connection):
        owner: Process

        def execute(self, statement: str, /, *given: Any) -> sqlite3.Cursor:
            points = _POINTS.get(statement.split(None, 1)[0])
            if self.owner.is_dead and not statement.startswith("ROLLBACK"):
                raise Killed
            if points is None or (self.in_transaction and points[0] == "before a write"):
                return super().execute(statement, *given)
            world.point(points[0])
            if trouble.strikes() and (points[0] != "before a transaction" or statement.endswith("IMMEDIATE")):
                raise _disk_full()
            cursor = super().execute(statement, *given)
            world.point(points[1])
            return cursor

    connect = sqlite3.connect

    def connect_in_world(path: str, **options: Any) -> sqlite3.Connection:
        connection = connect(path, factory=Connection, **options)
        connection.owner = world.current
        world.current.on_death.append(connection.close)
        return connection

    return connect_in_world


def _disk_full() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


# Redis


def _redis_client(world: World, trouble: Trouble, ears: Ears) -> redis.Redis:
    process = world.process("redis", Machine(world, "redis"))

    class Client(FakeRedis):
        def execute_command(self, *given: Any, **options: Any) -> Any:
            world.point("before a command")
            fate = world.random.choice(("refused", "unheard", "late")) if trouble.strikes() else ""
            if fate == "refused":
                raise redis.ConnectionError("refused")
            if fate == "late":
                process.after(world.random.uniform(0.0, _LATEST), self._run_late, given, options)
                world.sleep(1.0)
                raise redis.TimeoutError("no answer")
            with world.running(process):
                result = super().execute_command(*given, **options)
            if fate == "unheard":
                raise redis.ConnectionError("the connection broke")
            world.point("after a command")
            return result

        def _run_late(self, given: Any, options: Any) -> None:
            with contextlib.suppress(redis.RedisError):
                super().execute_command(*given, **options)

        def pubsub(self, **options: Any) -> Any:
            return _Subscription(super().pubsub(**options), ears)

    SERVER.dbs.clear()
    SERVER.script_cache.clear()
    SERVER.subscribers.clear()
    SERVER.on_publish = ears.ring
    return Client(server=SERVER)


class _Subscription:
    """A subscription that waits in the time of its world."""

    def __init__(self, subscription: Any, ears: Ears) -> None:
        self._subscription, self._ears = subscription, ears
        self.subscribe, self.close = subscription.subscribe, subscription.close

    def get_message(self, timeout: float = 0.0) -> Any:
        """Return a message that has come, or that comes within some seconds, however soon the caller looks again."""
        found = self._subscription.get_message(timeout=0.0)
        if found is None and timeout:
            self._ears.listen(_LOOK)
            found = self._subscription.get_message(timeout=0.0)
        return found
