"""What starts the processes of workers: one launcher for all workers of a server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

if TYPE_CHECKING:
    from torchserve_py.core.workers.batch_tokens import BatchTokens
    from torchserve_py.core.workers.launch_command import Launch


class NodeShare(NamedTuple):
    """What a worker on another machine has of it."""

    processors: int
    has_gpu: bool


class StartedProcess(Protocol):
    """The process of a worker, wherever it runs."""

    @property
    def pid(self) -> int:
        """The process id; -1 where there is none that means something on this machine."""
        ...

    @property
    def is_lost(self) -> bool:
        """Whether it was lost with its machine: then nobody has killed it."""
        ...

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        ...

    def adopt(self, pid: int) -> None:
        """Let the process group that ``pid`` leads end with this process; ``pid`` is what the kernel has told."""

    async def wait(self) -> str:
        """Wait for the end of the process and of its output; return why it ended."""
        ...

    def kill(self) -> None:
        """End the process and all that end with it, unless it is gone."""


class Launcher(ABC):
    """Starts the processes of workers. Those of a remote launcher run on other machines.

    They connect to a port of the server's (`WorkerListener.listen`), and have no device and no folder of this machine.
    """

    is_remote: ClassVar[bool] = False

    async def open(self) -> None:
        """Get ready to start processes. Raises OSError: that is not possible here."""
        return

    async def close(self) -> None:
        """Give up what the processes were started with; all workers have ended."""
        return

    @abstractmethod
    async def start(
        self, launch: Launch, socket: Path, token: str, worker_id: str, label: str, tokens: BatchTokens | None
    ) -> StartedProcess:
        """Start a process, which connects to ``socket``, and claims what it is sent ahead with ``tokens``.

        Raises OSError: it could not be started; WorkerFailed: no machine has room for it.
        """

    def forget_place(self, worker_id: str) -> None:
        """Forget a place of a pool: no further worker will have this id."""
        return

    def forget_files(self, model_dir: Path) -> None:
        """Forget a model's files: no further worker needs them."""
        return
