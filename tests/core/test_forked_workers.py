"""Workers that are forked from a process that has imported torch: what they are, and which workers are not forked."""

import contextlib
import os
import pwd
import signal
import stat
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import typing_extensions
from tests.e2e.running_server import RunningServer, eventually, model_folder

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone"),
]

HANDLER = """
import json
import os
import random
import resource
import subprocess
import sys

import numpy
import torch

print("loaded by", os.getpid())


def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == "exit":
        os._exit(3)
    if data[0]["body"] == "child":
        return [str(subprocess.Popen(["sleep", "1000"]).pid)]
    if data[0]["body"] == "multiply":  # by means of all threads
        ones = torch.ones(500, 500)
        return [str((ones @ ones).sum().item() + float((ones.numpy() @ ones.numpy()).sum()))]
    seen = {
        "random": [random.random(), float(numpy.random.rand()), torch.rand(1).item()],
        "arguments": sys.argv[1:],
        "folder": os.getcwd(),
        "first": next(folder for folder in sys.path if os.path.exists(f"{folder}/handler.py")),
        "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "threads": torch.get_num_threads(),
        "user": os.getuid(),
        "home": os.environ["HOME"],
        "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
        "status": open("/proc/self/status").read(),
    }
    return [json.dumps(seen)] * len(data)
"""
SHADOWING = (
    "import torch, typing_extensions\n\n\ndef handle(data, context):\n    return data and [typing_extensions.OWN]\n"
)
LIGHT = "def handle(data, context):\n    return data and ['light'] * len(data)\n"
TRUSS = "import torch\n\n\nclass Model:\n    def predict(self, request):\n        return torch.get_num_threads()\n"


def forked(server: RunningServer, pid: int) -> bool:
    """Whether a worker is not a child of the server's own, but one of the process that forks workers."""
    parent = psutil.Process(pid).parent()
    assert parent is not None
    is_forked = parent.pid != server.server.pid
    assert is_forked == ("ts.core.forking.warm_parent" in parent.cmdline())
    return is_forked


def pids(server: RunningServer, model: str) -> list[int]:
    return [worker["pid"] for worker in server.describe(model)[0]["workers"]]


def seen_by_both(server: RunningServer) -> dict[int, dict[str, Any]]:
    """What each of the two workers of the model ``pair`` sees first, by process id."""
    found: dict[int, dict[str, Any]] = {}

    def both() -> bool:
        answer = server.predict("pair").json()
        found.setdefault(int(answer["status"].partition("\nPid:")[2].split()[0]), answer)
        return len(found) == 2

    eventually(both, "both workers have answered")
    return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "pair", HANDLER, "minWorkers: 2\nmaxWorkers: 2\n")
    properties = {"worker_memory_limit": 4000, "install_py_dep_per_model": "true"}
    with RunningServer({"pair": folder}, properties, environment={"PIP_NO_INDEX": "1"}) as server:
        server.wait_ready()
        yield server


def test_a_forked_worker_is_as_any_other_and_draws_numbers_of_its_own(server: RunningServer) -> None:
    workers = seen_by_both(server)
    assert sorted(workers) == sorted(pids(server, "pair")) == sorted(each.pid for each in server.workers())
    assert all(forked(server, pid) for pid in workers)
    drawn = [seen.pop("random") for seen in workers.values()]
    assert all(first != second for first, second in zip(*drawn, strict=True))
    for pid, seen in workers.items():
        assert seen["arguments"] == []
        assert Path(seen["folder"]).samefile(seen["first"])
        assert seen["leads"]
        assert seen["memory"] == 4000 << 20
        assert "NoNewPrivs:\t1\n" in seen["status"]
        assert f"loaded by {pid}" in server.model_log()
    assert server.predict("pair", "multiply").text == "250000000.0"


def test_a_forked_worker_that_dies_is_replaced_and_takes_its_processes_along(server: RunningServer) -> None:
    child = psutil.Process(int(server.predict("pair", "child").text))
    (worker,) = (each for each in server.workers() if each.pid == child.ppid())
    worker.kill()
    eventually(lambda: worker.pid not in pids(server, "pair") and len(server.workers()) == 2, "there is another")
    server.wait_ready()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not worker.is_running()
    assert all(forked(server, pid) for pid in pids(server, "pair"))
    assert f"(pid {worker.pid}) was killed by SIGKILL" in server.log()

    assert server.predict("pair", "exit").status_code == 500
    eventually(lambda: "exited with code 3" in server.log(), "the exit status is in the log")
    eventually(lambda: len(pids(server, "pair")) == len(seen_by_both(server)) == 2, "there is another")


def test_a_forked_worker_that_has_ended_leaves_no_pipe_open(server: RunningServer, tmp_path: Path) -> None:
    def pipes() -> int:
        found = 0
        for descriptor in Path(f"/proc/{server.server.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found += str(descriptor.readlink()).startswith("pipe:")
        return found

    folder = model_folder(tmp_path, "passing", "import torch\n\n\ndef handle(data, context):\n    pass\n")
    before = pipes()
    for _ in range(5):
        assert server.register(folder).status_code == 200
        assert forked(server, *pids(server, "passing"))
        assert pipes() > before
        assert server.unregister("passing").status_code == 200
    eventually(lambda: pipes() == before, "the pipes are closed")


def test_workers_outlive_the_death_of_what_forks_them_by_being_replaced(server: RunningServer) -> None:
    before = pids(server, "pair")
    parent = psutil.Process(before[0]).parent()
    assert parent is not None
    parent.kill()
    eventually(lambda: not set(before) & set(pids(server, "pair")), "there are others")
    server.wait_ready()
    assert all(forked(server, pid) for pid in pids(server, "pair"))
    assert not any(psutil.pid_exists(pid) for pid in before)


def test_a_model_whose_file_hides_a_module_gets_its_own_file(server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "shadowing", SHADOWING)
    (folder / "typing_extensions.py").write_text(Path(typing_extensions.__file__).read_text() + "\nOWN = 'own'\n")
    assert server.register(folder).status_code == 200
    assert server.predict("shadowing").text == "own"
    assert not forked(server, *pids(server, "shadowing"))
    assert "is not forked: the model has a module typing_extensions of its own" in server.log()


def test_a_model_with_packages_of_its_own_is_not_forked(server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "packages", HANDLER)
    wheel, info = "tiny-1.0-py3-none-any.whl", "tiny-1.0.dist-info"
    with zipfile.ZipFile(folder / wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"tiny.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    (folder / "requirements.txt").write_text(f"./{wheel}\n")
    assert server.register(folder).status_code == 200
    assert not forked(server, *pids(server, "packages"))


def test_a_model_with_variables_of_its_own_or_without_torch_is_not_forked(
    server: RunningServer, tmp_path: Path
) -> None:
    truss = tmp_path / "truss"
    (truss / "model").mkdir(parents=True)
    (truss / "config.yaml").write_text("environment_variables: {OMP_NUM_THREADS: '1'}\n")
    (truss / "model" / "model.py").write_text(TRUSS)
    assert server.register(truss).status_code == 200
    assert server.predict("truss", "null", headers={"content-type": "application/json"}).text == "1"
    assert not forked(server, *pids(server, "truss"))

    assert server.register(model_folder(tmp_path, "light", LIGHT)).status_code == 200
    assert not forked(server, *pids(server, "light"))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_the_server_ends_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    with RunningServer({"m": model_folder(tmp_path, "m", HANDLER)}) as server:
        server.wait_ready()
        assert forked(server, *pids(server, "m"))
        processes = server.server.children(recursive=True)
        assert len(processes) == 2
        server.server.send_signal(number)
        _, left = psutil.wait_procs(processes, timeout=180)
        assert not left


def others_may_enter(folder: Path) -> bool:
    return all(each.stat().st_mode & stat.S_IXOTH for each in (folder, *folder.parents))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")
@pytest.mark.skipif(not others_may_enter(Path(sys.executable).resolve().parent), reason="Python is root's alone")
def test_a_forked_worker_runs_as_the_user_that_is_set() -> None:
    account = pwd.getpwnam("nobody")
    server = RunningServer({}, {"worker_user": account.pw_name})
    server.directory.chmod(0o711)
    server.temp.chmod(0o711)
    folder = model_folder(server.directory, "m", HANDLER)
    with server:
        assert server.register(folder).status_code == 200
        (pid,) = pids(server, "m")
        assert forked(server, pid)
        seen = server.predict("m").json()
        assert (seen["user"], seen["home"]) == (account.pw_uid, account.pw_dir)
        psutil.Process(pid).kill()
        eventually(lambda: pids(server, "m") != [pid] and server.predict("m").status_code == 200, "it is replaced")


def test_workers_are_not_forked_where_that_is_switched_off(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "m", HANDLER)
    with RunningServer({"m": folder}, {"fork_workers": "false"}) as server:
        server.wait_ready()
        assert not forked(server, *pids(server, "m"))
        assert len(server.server.children()) == 1
