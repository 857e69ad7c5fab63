"""How a worker process is started: its command line, its folder and its environment.

A launcher may come before the worker's own command line: one for several processes, Intel's for CPU cores. Each
runs in a process that dies with the server (`ts.process.parent_death`), and starts the worker's command as it is.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import ts
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.workers.confinement import Confinement
from ts.protocol.messages import FOLDERS_VARIABLE, TOKEN_VARIABLE


class RankLauncher(Protocol):
    """Starts the ranks of a worker, each with its number in the variable RANK."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that it needs, and those of all ranks."""
        ...

    def wrap(self, ranks: RankGroup, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` once per rank.

        Raises FileNotFoundError: a package is missing.
        """
        ...


@dataclass(frozen=True)
class RankGroup:
    """The processes of one worker, its ranks, and what starts them."""

    processes: int  # how many
    every_rank: bool  # whether all of them get the requests, or only rank 0
    name: str  # what tells this worker from all others
    log_dir: Path  # where what starts them may keep logs
    launcher: RankLauncher

    def wrap(self, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` once per rank; see `RankLauncher.wrap`."""
        return self.launcher.wrap(self, python, command)


@dataclass(frozen=True)
class CpuLauncher:
    """How `torch.backends.xeon.run_cpu` binds one worker to its share of the cores."""

    arguments: tuple[str, ...] = ()  # further arguments of the launcher
    index: int = 0  # which of the model's workers this is, from 0
    count: int = 1  # how many workers the model has; the cores are shared by them

    def wrap(self, python: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs ``command`` on this worker's cores.

        Raises FileNotFoundError: torch, or what the launcher binds processes with, is missing.
        """
        needed_by = "cpu_launcher_enable"
        if not shutil.which("numactl") and not shutil.which("taskset"):
            raise FileNotFoundError(f"{needed_by} needs numactl or taskset, and neither is on PATH")
        share = ("--ninstances", str(self.count), "--rank", str(self.index)) if self.count > 1 else ()
        launcher = launcher_of_torch(python, "torch.backends.xeon.run_cpu", needed_by)
        return [*launcher, *self.arguments, *share, "--no-python", *command]


def launcher_of_torch(python: str, module: str, needed_by: str) -> list[str]:
    """Return what comes before a command that a module of torch's runs. Raises FileNotFoundError: torch is missing."""
    # Of another interpreter only that itself can tell; it then says so in the model log.
    if python == sys.executable and importlib.util.find_spec("torch") is None:
        raise FileNotFoundError(f"{needed_by} needs torch, which is not installed: pip install torch")
    return [python, "-P", "-m", "ts.process.parent_death", module]


@dataclass(frozen=True)
class Launch:
    """How a worker process of a model version is started."""

    working_dir: Path
    runtime: str = "python"  # "python": this interpreter; "python3": the one on PATH
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of the server's own
    hidden_variables: frozenset[str] = frozenset()  # names of the server's variables that the worker must not see
    gpu_index: int | None = None  # nvidia-smi's number of its GPU, the first of several; None on a CPU
    venv_python: Path | None = None  # the interpreter of the model's own virtual environment, instead of the runtime's
    packages_dir: Path | None = None  # packages that were installed for the model, without a virtual environment
    ranks: RankGroup | None = None  # the worker is several processes
    cpu_launcher: CpuLauncher | None = None  # binds the worker to its share of the cores
    ahead: bool = False  # the worker may be sent a batch while it runs one
    confinement: Confinement = field(default_factory=Confinement)  # as which user it runs, and with how much memory
    handler: str = ""  # the file or the name of its handler, if it has one
    plugin_keys: PluginKeys = field(default_factory=PluginKeys)  # what the model's configuration says for plugins

    def command(self, socket: Path) -> list[str]:
        """Return the command line.

        Raises FileNotFoundError: the interpreter that the runtime asks for, or a launcher, is missing.
        """
        python = str(self.venv_python or interpreter(self.runtime))
        # -P keeps the working directory, which is the model's, from shadowing modules of the worker itself.
        command = [python, "-P", "-m", "ts.process.worker", "--socket", str(socket)]
        if self.ranks is not None:
            command.append("--rank-from-environment")
        if self.cpu_launcher is not None:
            command = self.cpu_launcher.wrap(python, command)
        if self.ranks is not None:
            command = self.ranks.wrap(python, command)
        return self.confinement.wrap(command)

    def worker_environment(self, token: str) -> dict[str, str]:
        """Return the environment of the process."""
        paths = [self.packages_dir]
        if self.venv_python is None:  # a virtual environment has it behind its own packages
            paths.append(worker_package_root())
        environment = server_environment(self.hidden_variables, *paths)
        # Not in PYTHONPATH: a types.py of the model's must not come before Python's.
        folders = os.pathsep.join(str(each) for each in (self.working_dir, self.packages_dir) if each)
        return {**environment, **self.environment, FOLDERS_VARIABLE: folders, TOKEN_VARIABLE: token}


def server_environment(hidden: frozenset[str], *paths: Path | None) -> dict[str, str]:
    """Return the server's variables without those that are hidden, with further folders to look for modules in."""
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    inherited = environment.get("PYTHONPATH")
    searched = [inherited] if inherited else []
    environment["PYTHONPATH"] = os.pathsep.join([*searched, *(str(each) for each in paths if each)])
    return environment


def interpreter(runtime: str) -> str:
    """Return the Python interpreter that a runtime means. Raises FileNotFoundError: it is not on PATH."""
    if runtime != "python3":
        return sys.executable
    found = shutil.which("python3")
    if found is None:
        raise FileNotFoundError("the model asks for runtime 'python3', but no python3 is on PATH")
    return found


def worker_package_root() -> Path:
    """Return the directory that ``ts`` is imported from, for workers whose interpreter does not have it installed."""
    return Path(ts.__file__).parents[1]
