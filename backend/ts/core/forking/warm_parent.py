"""A process without a model that has imported what many models need, and forks workers that need not import it again.

    python -P -m ts.core.forking.warm_parent --socket PATH --orders DESCRIPTOR

PATH is where workers connect. DESCRIPTOR is a socket with orders, one message each: JSON (`ForkOrder`) and the
descriptors of the status pipe, of the worker's output and errors, and of its claims. Into the status pipe the worker
writes ``pid N`` once it leads its process group; this process writes ``refused REASON`` instead of forking, and
``exit CODE`` when the worker has ended.

A process can fork safely while it has one thread and has not used a GPU, so this process only imports modules. The
kernel ends this process when the server ends, and then its workers.
"""

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from ts.jobs.processor_share import let_waiting_threads_sleep
from ts.process import worker
from ts.process.no_new_privileges import gain_no_privileges
from ts.process.parent_death import die_with_parent
from ts.protocol.messages import CLAIMS_VARIABLE

_MAX_ORDER: Final = 256 * 1024
_MAX_DESCRIPTORS: Final = 16
#: The most folders of a model that are searched.
_MOST_FOLDERS: Final = 1000
#: Python imports these by itself when it starts, from the model's folder, too.
_IMPORTED_AT_START: Final = frozenset(("sitecustomize", "usercustomize"))


class ForkOrder(TypedDict):
    """What the server asks for.

    imports      modules that the model needs; one that cannot be imported is left to the worker
    folder       the model's folder, in which the worker runs and looks for modules
    environment  the worker's variables, besides those of this process
    """

    imports: list[str]
    folder: str
    environment: dict[str, str]


class _Ends(NamedTuple):
    """The descriptors that come with an order."""

    status: int
    output: int
    errors: int
    claims: Sequence[int]

    def close(self) -> None:
        for end in (self.status, self.output, self.errors, *self.claims):
            os.close(end)


class WarmParent:
    """Takes orders from the server's socket and forks workers with these arguments."""

    def __init__(self, orders: socket.socket, arguments: list[str]) -> None:
        self._orders = orders
        self._arguments = arguments
        #: The process and the status pipe of each worker, by the descriptor that tells of its end.
        self._workers: dict[int, tuple[int, int]] = {}
        self._poll = select.poll()
        self._poll.register(orders, select.POLLIN)

    def run(self) -> ForkOrder | None:
        """Fork workers until the server closes the socket; return None then, and in each forked process its order."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor in self._workers:
                    self._reap(descriptor)
                    continue
                data, ends, _, _ = socket.recv_fds(self._orders, _MAX_ORDER, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    return None
                order: ForkOrder = json.loads(data)
                if self._fork(order, _Ends(ends[0], ends[1], ends[2], ends[3:])):
                    return order

    def _fork(self, order: ForkOrder, ends: _Ends) -> bool:
        """Fork a worker, unless that is not safe or not the same; return whether this is the worker's process."""
        parent = os.getpid()
        try:
            reason = _import(order["imports"]) or _shadowed(order["folder"]) or _unsafe()
            sys.stdout.flush()  # what the imports have printed is not for every worker to print again
            gc.collect()
            gc.freeze()  # the collector would write to, and so copy, all memory that the workers share
            pid = -1 if reason else os.fork()
        except OSError as error:
            reason = str(error)
        if reason:
            _tell(ends.status, f"refused {reason}")
            ends.close()
            return False
        if pid == 0:
            self._orders.close()
            for ended, (_, status) in self._workers.items():
                os.close(ended)
                os.close(status)
            _start(order, ends, self._arguments, parent)
            return True
        ended = os.pidfd_open(pid)
        self._workers[ended] = pid, os.dup(ends.status)
        self._poll.register(ended, select.POLLIN)
        ends.close()
        return False

    def _reap(self, ended: int) -> None:
        pid, status = self._workers.pop(ended)
        self._poll.unregister(ended)
        os.close(ended)
        _, code = os.waitpid(pid, 0)
        _tell(status, f"exit {os.waitstatus_to_exitcode(code)}")
        os.close(status)


def main(arguments: list[str]) -> int:
    """Fork workers until the server closes the socket; in a worker's process run the worker. Return the exit code."""
    match arguments:
        case ["--socket", path, "--orders", descriptor]:
            orders = socket.socket(fileno=int(descriptor))
        case _:
            print("usage: python -P -m ts.core.forking.warm_parent --socket PATH --orders DESCRIPTOR", file=sys.stderr)
            return 2
    orders.set_inheritable(False)
    die_with_parent()
    gain_no_privileges()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    let_waiting_threads_sleep()  # OpenMP reads this when it is loaded, so for all workers
    arguments = ["--socket", path]
    return 0 if WarmParent(orders, arguments).run() is None else worker.main(arguments)


def _tell(status: int, line: str) -> None:
    try:
        os.write(status, f"{line}\n".encode(errors="replace"))
    except BrokenPipeError:
        print(f"The server no longer waits to be told: {line}", file=sys.stderr)


def _import(modules: list[str]) -> str:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # the worker meets it, too, if its model needs the module
            return f"{module} cannot be imported: {type(error).__name__}"
    return ""


def _shadowed(folder: str) -> str:
    """Return which module in any of the model's folders has the name of one imported here from elsewhere, or ''."""
    imported = {name for name in sys.modules if "." not in name} - {"__main__"} | _IMPORTED_AT_START
    for count, (place, folders, files) in enumerate(os.walk(folder)):
        packages = {name for name in folders if Path(place, name, "__init__.py").exists()}
        modules = {name.partition(".")[0] for name in files if name.endswith((".py", ".pyc", ".so"))}
        if hidden := imported & (packages | modules):
            return f"the model has a module {min(hidden)} of its own, and the warm parent has imported another"
        if count == _MOST_FOLDERS:
            return f"the model has more than {_MOST_FOLDERS} folders, which may hide modules of the warm parent's"
        folders[:] = set(folders) - packages
    return ""


def _unsafe() -> str:
    """Return why this process must not fork, or ''."""
    if _threads() > 1:  # numpy's BLAS ends its threads when a process forks, and starts them again when it needs them
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    if (threads := _threads()) > 1:
        return f"importing modules has started {threads - 1} threads"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return "importing modules has initialized CUDA" if cuda is not None and cuda.is_initialized() else ""


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only their number counts


def _start(order: ForkOrder, ends: _Ends, arguments: list[str], parent: int) -> None:
    """Make this forked process what a worker is that was started in an interpreter of its own."""
    os.setsid()
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # it has ended already
    os.dup2(ends.output, 1)
    os.dup2(ends.errors, 2)
    os.close(ends.output)
    os.close(ends.errors)
    os.environ.update(order["environment"])
    if ends.claims:
        os.environ[CLAIMS_VARIABLE] = ",".join(map(str, ends.claims))
    folder = order["folder"]
    os.chdir(folder)
    importlib.invalidate_caches()
    _seed()
    sys.argv = [worker.__file__, *arguments]
    _show_command([sys.executable, "-P", "-m", "ts.process.worker", *arguments])
    os.write(ends.status, f"pid {os.getpid()}\n".encode())  # fails if the server does not want the worker any more
    os.close(ends.status)


def _seed() -> None:
    """Let this process draw random numbers of its own; the module random sees to that itself."""
    if (numbers := sys.modules.get("numpy.random")) is not None:
        numbers.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _show_command(words: list[str]) -> None:
    """Show this process under another command line, as far as there is room for it in the place of its own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end
    shown = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
