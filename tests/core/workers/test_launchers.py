"""The command lines of launchers that come before a worker's own."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_py.core.torchrun.torchrun import Torchrun
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig
from torchserve_py.core.workers import launch_command
from torchserve_py.core.workers.launch_command import CpuLauncher, Launch, RankGroup, worker_package_root

SOCKET = Path("/sockets/workers.sock")
PACKAGES = str(worker_package_root())
TWO_RANKS = RankGroup(2, True, "m_29500", Path("/logs"), Torchrun(TorchrunConfig()))


@pytest.fixture(autouse=True)
def everything_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch, numactl and taskset, as far as the launchers can tell."""
    spec = importlib.util.find_spec("json")
    monkeypatch.setattr(launch_command.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(launch_command.shutil, "which", lambda name: f"/bin/{name}")


def command(**launcher: RankGroup | CpuLauncher) -> str:
    python, *arguments = Launch(Path("/model"), **launcher).command(SOCKET)  # type: ignore[arg-type]
    assert python == sys.executable
    return " ".join(arguments).replace(sys.executable, "PYTHON")


WORKER = f"-P -m ts.process.worker --socket {SOCKET}"


def test_without_launchers() -> None:
    assert command() == WORKER


def test_torchrun() -> None:
    assert command(ranks=TWO_RANKS) == (
        "-P -m ts.process.parent_death torch.distributed.run --nnodes 1 --nproc-per-node 2"
        " --log-dir /logs/torchelastic_ts --rdzv-backend c10d --rdzv-endpoint localhost:0"
        " --rdzv-id m_29500 --max-restarts 0 --no-python"
        f" PYTHON {WORKER} --rank-from-environment"
    )


def test_the_first_of_one_worker_has_all_cores() -> None:
    assert command(cpu_launcher=CpuLauncher(("--use-logical-core",))) == (
        f"-P -m ts.process.parent_death torch.backends.xeon.run_cpu --use-logical-core --no-python PYTHON {WORKER}"
    )


def test_several_workers_share_the_cores() -> None:
    assert command(cpu_launcher=CpuLauncher(index=1, count=3)) == (
        f"-P -m ts.process.parent_death torch.backends.xeon.run_cpu --ninstances 3 --rank 1 --no-python PYTHON {WORKER}"
    )


def test_torchrun_comes_before_the_cpu_launcher() -> None:
    line = command(ranks=TWO_RANKS, cpu_launcher=CpuLauncher())
    launcher = "--no-python PYTHON -P -m ts.process.parent_death torch.backends.xeon.run_cpu --no-python"
    assert f"{launcher} PYTHON {WORKER} --rank-from-environment" in line


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_command.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="cpu_launcher_enable needs torch, which is not installed"):
        command(cpu_launcher=CpuLauncher())
    with pytest.raises(FileNotFoundError, match="a model with parallelType needs torch"):
        command(ranks=TWO_RANKS)


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_command.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match="needs numactl or taskset, and neither is on PATH"):
        command(cpu_launcher=CpuLauncher())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["platform", "--terse"], 0, "-"),
        (["no_such_package.launcher"], 1, "by no_such_package.launcher: there is no package no_such_package"),
        ([], 1, "usage"),
    ],
)
def test_a_module_in_a_process_that_dies_with_its_parent(arguments: list[str], code: int, told: str) -> None:
    line = [sys.executable, "-P", "-m", "ts.process.parent_death", *arguments]
    environment = {"PYTHONPATH": PACKAGES}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, told in ended.stdout + ended.stderr) == (code, True), ended
