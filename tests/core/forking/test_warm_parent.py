"""The process that forks workers: what it tells of them, and when it does not fork."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
LIMIT = 60.0
WITH_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n"


class Server:
    """The server's end: orders workers, and reads what is told of them.

    ``modules`` is a folder that the warm parent finds modules in. Workers find no socket at ``path`` until one listens.
    """

    def __init__(self, directory: Path) -> None:
        self.path, self.modules, self.folder = directory / "socket", directory / "modules", directory / "model"
        self.modules.mkdir()
        self.folder.mkdir()
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        paths = [str(self.modules), os.environ.get("PYTHONPATH", "")]
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "ts.core.forking.warm_parent",
                    "--socket",
                    self.path,
                    "--orders",
                    str(theirs.fileno()),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                pass_fds=[theirs.fileno()],
            )

    def order(self, *imports: str) -> Iterator[str]:
        """Order a worker; yield each line about it."""
        with self.send(imports) as lines:
            yield from map(str.strip, lines)

    def send(self, imports: Sequence[str]) -> TextIO:
        """Order a worker; return the lines about it."""
        status, status_end = os.pipe()
        output = os.open(os.devnull, os.O_WRONLY)
        order = {"imports": imports, "folder": str(self.folder), "environment": {"TS_WORKER_TOKEN": "token"}}
        socket.send_fds(self.orders, [json.dumps(order).encode()], [status_end, output, output])
        os.close(status_end)
        os.close(output)
        return os.fdopen(status)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    with server.orders:
        yield server
    assert server.process.wait(LIMIT) == 0, "it ends with the server's socket"


def test_it_tells_the_process_and_the_exit_status_of_each_worker(server: Server) -> None:
    for _ in range(2):
        pid, code = server.order()
        assert pid.startswith("pid ")
        assert code == "exit 1", "there is no socket to connect to"


def test_a_worker_that_is_killed_has_ended_by_the_signal(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(server.path))
        listener.listen()
        told = server.order()
        process = int(next(told).removeprefix("pid "))
        assert os.getsid(process) == os.getpgid(process) == process
        command = Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        assert command[1:] == [b"-P", b"-m", b"ts.process.worker", b"--socket", os.fsencode(server.path)]
        os.killpg(process, signal.SIGKILL)
        assert next(told) == "exit -9"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (WITH_THREAD, "refused importing modules has started 1 threads"),
        ("raise ValueError", "refused needed cannot be imported: ValueError"),
    ],
)
def test_it_does_not_fork_where_that_is_unsafe_or_imports_fail(server: Server, source: str, reason: str) -> None:
    (server.modules / "needed.py").write_text(source)
    assert list(server.order("needed")) == [reason]


def test_waiting_threads_are_to_sleep_soon_before_any_library_is_imported(server: Server) -> None:
    seen = server.modules / "seen"
    (server.modules / "needed.py").write_text(
        f"import os\nopen({str(seen)!r}, 'w').write(os.environ['GOMP_SPINCOUNT'])\n"
    )
    assert next(iter(server.order("needed"))).startswith("pid ")
    assert seen.read_text() == "1000"


@pytest.mark.parametrize("hiding", ["needed.py", "vendored/needed/__init__.py", "sitecustomize.py"])
def test_it_does_not_fork_for_a_model_with_a_module_of_the_same_name(server: Server, hiding: str) -> None:
    (server.modules / "needed.py").touch()
    (server.folder / hiding).parent.mkdir(parents=True, exist_ok=True)
    (server.folder / hiding).touch()
    (told,) = server.order("needed")
    assert told.startswith("refused the model has a module ")


def test_modules_inside_packages_hide_nothing(server: Server) -> None:
    (server.modules / "needed.py").touch()
    package = server.folder / "package"
    package.mkdir()
    for name in ("__init__", "needed"):
        (package / f"{name}.py").touch()
    assert next(iter(server.order("needed"))).startswith("pid ")


def test_a_worker_that_the_server_has_given_up_does_not_run(server: Server) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(server.path))
        listener.listen()
        server.send([]).close()
        pid = next(iter(server.order())).removeprefix("pid ")
        children = psutil.Process(server.process.pid).children()
        running = [each.pid for each in children if each.status() != psutil.STATUS_ZOMBIE and each.pid != int(pid)]
        assert psutil.wait_procs([psutil.Process(each) for each in running], LIMIT)[1] == []
