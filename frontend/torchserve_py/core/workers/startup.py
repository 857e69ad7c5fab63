"""The start of a worker: its processes connect and load the model, and declare what it takes and gives."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.net.running_time import running_time
from ts.protocol.messages import Loaded

#: What a process tells of how loading went, beside what the model declares; see `ts.protocol.messages.Loaded`.
_TYPES: Final = {"ok": bool, "status": int, "message": str}
#: Values, each in lists and mappings counted, and characters of all texts.
MAX_VALUES: Final = 20_000
MAX_CHARACTERS: Final = 4 << 20
_MAX_DEPTH: Final = 64


#: How a process that the server has not killed got SIGKILL. Before it is ready it counts as out of memory.
BY_WHOM_KILLED: Final = "by an operator, or by the system because memory ran out"
_NO_MEMORY: Final = 507


class WorkerFailed(Exception):
    """A worker did not get ready."""

    def __init__(self, status: int, message: str, *, traceback_printed: bool = False, unplaced: bool = False) -> None:
        super().__init__(message)
        self.status = status  # 507 when memory ran out, else 500
        self.traceback_printed = traceback_printed  # the worker has printed why
        self.unplaced = unplaced  # no machine has room for the worker at present: the model is not to blame

    @property
    def lacks_memory(self) -> bool:
        """Whether memory ran out."""
        return self.status == _NO_MEMORY


class Startup:
    """The steps of one worker, each of whose processes loads the model; ``ended`` resolves to why they are gone."""

    def __init__(self, label: str, processes: int, ended: asyncio.Future[str]) -> None:
        self._label = label
        self._not_loaded = processes
        self._ended = ended
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loaded: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()

    async def connection(self, limit: float) -> None:
        """Wait until all processes have connected, at most ``limit`` seconds. Raises WorkerFailed: they have not."""
        await self._reach(self._connected, limit, "connect to the server")

    async def model(self, limit: float) -> Loaded:
        """Wait until all processes have loaded the model, at most ``limit`` seconds; return what the last one tells.

        Raises WorkerFailed: they have not.
        """
        loaded: Loaded = await self._reach(self._loaded, limit, "load the model")
        if not loaded["ok"]:
            raise WorkerFailed(int(loaded["status"]), str(loaded["message"]), traceback_printed=True)
        if self._ended.done():
            raise WorkerFailed(500, f"worker {self._label} {self._ended.result()} as soon as it had loaded the model")
        return loaded

    async def _reach(self, step: asyncio.Future[Any], limit: float, what: str) -> Any:
        """Wait for a step, the end of the processes, or the limit."""
        await running_time().wait([step, self._ended], limit)
        if step.done():
            return step.result()
        if self._ended.done():
            reason = self._ended.result()
            status = _NO_MEMORY if BY_WHOM_KILLED in reason else 500
            raise WorkerFailed(status, f"worker {self._label} {reason} before it could {what}")
        raise WorkerFailed(500, f"worker {self._label} took longer than {limit:g} s to {what}")

    # Called by the worker.

    def connected(self) -> None:
        """All processes have connected."""
        if not self._connected.done():
            self._connected.set_result(None)

    def loaded(self, loaded: Loaded) -> None:
        """A process has loaded the model, or failed to.

        Raises ValueError: all processes have loaded it already, or one has failed; or the message is malformed.
        """
        if self._loaded.done():
            raise ValueError("the model has been loaded before, or failed to")
        told = {name: type(loaded.get(name)) for name in _TYPES}
        if told != _TYPES:
            shown = ", ".join(f"{name} of type {kind.__name__}" for name, kind in told.items())
            raise ValueError(f"how loading went is told with {shown}")
        checked_declarations(loaded["declares"])
        self._not_loaded -= 1
        if not self._not_loaded or not loaded["ok"]:
            self._loaded.set_result(loaded)


def checked_declarations(declared: Any) -> Mapping[str, Any]:
    """Return the declarations of a worker if they are usable.

    Raises ValueError: they are no mapping with texts as keys, or over a limit.
    """
    if not isinstance(declared, dict) or not all(isinstance(key, str) for key in declared):
        raise ValueError(f"its model declares a {type(declared).__name__}, which is no mapping with texts as keys")
    values = characters = 0
    level: list[Any] = [declared]
    for _ in range(_MAX_DEPTH):
        values += len(level)
        characters += sum(len(each) for each in level if isinstance(each, (str, bytes)))
        if values > MAX_VALUES or characters > MAX_CHARACTERS:
            raise ValueError(f"its model declares more than {MAX_VALUES} values or {MAX_CHARACTERS} characters")
        level = _inside(level)
        if not level:
            return declared
    raise ValueError(f"its model declares values in more than {_MAX_DEPTH} lists and mappings inside each other")


def _inside(level: list[Any]) -> list[Any]:
    """The values directly in the lists and mappings among these; not many more than are allowed."""
    inside: list[Any] = []
    for each in level:
        if isinstance(each, dict):
            inside += (*each.keys(), *each.values())
        elif isinstance(each, (list, tuple)):
            inside += each
        if len(inside) > MAX_VALUES:
            break
    return inside
