"""How each kind of server is started with one model: its configuration, command and environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple, Protocol

from benchmarks.benchmark_models import ROOT, SOURCES, BenchmarkModel, HandlerModel
from benchmarks.results import BARE_AIOHTTP, BARE_GRPC, MLSERVER, MOSEC, OURS, TORCHSERVE, TRUSS

#: Writes a Truss's configuration with all its defaults, as the build of an image does; the server needs them.
_WITH_DEFAULTS = """
import sys
from pathlib import Path
from truss.base.truss_config import TrussConfig
TrussConfig.from_yaml(Path(sys.argv[1])).write_to_yaml_file(Path(sys.argv[2]), verbose=True)
"""


class NotInstalled(RuntimeError):
    """A server that is to be measured is not there."""


class Ports(NamedTuple):
    """Free ports for one server."""

    http: int
    management: int
    metrics: int
    grpc: int
    grpc_management: int


class Launcher(Protocol):
    """One kind of server."""

    @property
    def name(self) -> str:
        """As in the results."""

    @property
    def environment(self) -> dict[str, str]:
        """What it needs besides the environment of this process."""

    @property
    def daemonizes(self) -> bool:
        """Whether the command returns when the server has been started; the server then writes its PID_FILE."""

    @property
    def has_http(self) -> bool:
        """Whether it answers the model's probe."""

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Write what it needs into `folder`. Returns the command that starts it, to be run there."""


class _Foreground:
    environment: dict[str, str] = {}  # noqa: RUF012 (nobody changes it)
    daemonizes = False
    has_http = True


class TorchServeLike:
    """TorchServe, or this server, which is started by the same flags and configuration."""

    daemonizes = True
    has_http = True

    def __init__(self, name: str, program: list[str], environment: dict[str, str], properties: str = "") -> None:
        self.name = name
        self.environment = environment
        self._program = program
        self._properties = properties

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Write the model store and config.properties. Tokens and the access log stay on, as they are by default."""
        store = folder / "model_store"
        store.mkdir()
        config = folder / "config.properties"
        config.write_text(
            f"inference_address=http://127.0.0.1:{ports.http}\n"
            f"management_address=http://127.0.0.1:{ports.management}\n"
            f"metrics_address=http://127.0.0.1:{ports.metrics}\n"
            f"grpc_inference_port={ports.grpc}\n"
            f"grpc_management_port={ports.grpc_management}\n"
            f"model_store={store}\n"
            f"load_models={model.name}={model.put_into(store)}\n"
            "disable_system_metrics=true\n"
            "drain_timeout=1\n"  # this server's own: do not wait long for sequences that a load has left open
            + self._properties
        )
        return [*self._program, "--start", "--ncs", "--ts-config", str(config)]


def this_server(python: str, properties: str = "", checkout: Path = ROOT) -> Launcher:
    """A checkout's server, run by the interpreter `python`, with further lines of config.properties."""
    sources = os.pathsep.join(str(checkout / name) for name in ("frontend", "backend"))
    return TorchServeLike(OURS, [python, "-m", "torchserve_py.cli"], {"PYTHONPATH": sources}, properties)


def torchserve(venv: Path) -> Launcher:
    """The real TorchServe that scripts/install-torchserve has put into `venv`. Raises NotInstalled if it is not."""
    program = _program(venv, "torchserve", "install-torchserve")
    # TorchServe starts its workers with the `python` that it finds first.
    path = os.pathsep.join([str(venv / "bin"), os.environ.get("PATH", "")])
    return TorchServeLike(TORCHSERVE, [str(program)], {"PATH": path})


class MLServer(_Foreground):
    """The real MLServer that scripts/install-mlserver has put into `venv`; it runs the model in its own process.

    Raises:
        NotInstalled: It is not there.
    """

    name = MLSERVER

    def __init__(self, venv: Path) -> None:
        self._program = _program(venv, "mlserver", "install-mlserver")

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Write the model's folder and settings.json beside it."""
        settings = {
            "host": "127.0.0.1",
            "http_port": ports.http,
            "grpc_port": ports.grpc,
            "metrics_port": ports.metrics,
            "parallel_workers": 0,  # its workers do not start with current versions of uvloop
            "debug": False,
        }
        (folder / "settings.json").write_text(json.dumps(settings))
        model.put_into(folder)
        return [str(self._program), "start", str(folder)]


class Truss(_Foreground):
    """The server of the real Truss that scripts/install-truss has put into `venv`.

    It is laid out as in the images that Truss builds.

    Raises:
        NotInstalled: It is not there.
    """

    name = TRUSS

    def __init__(self, venv: Path) -> None:
        self._python = _program(venv, "truss", "install-truss").with_name("python")
        found = sorted(venv.glob("lib/python*/site-packages/truss/templates"))
        if not found:
            raise NotInstalled(f"There are no templates of Truss in {venv}; scripts/install-truss installs them.")
        self._templates = found[0]

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """Copy the server, and the model into it; the configuration gets all its defaults."""
        app = folder / "app"
        shutil.copytree(self._templates / "server", app)
        shutil.copytree(self._templates / "shared", app / "_truss_shared")
        truss = folder / model.put_into(folder)
        shutil.copytree(truss / "model", app / "model")
        (app / "data").mkdir()
        config = [str(self._python), "-c", _WITH_DEFAULTS, "config.yaml", str(app / "config.yaml")]
        subprocess.run(config, cwd=truss, check=True, timeout=60)
        return ["env", "-C", str(app), f"INFERENCE_SERVER_PORT={ports.http}", str(self._python), "main.py"]


class Mosec(_Foreground):
    """mosec, which scripts/install-mosec has put into `venv`, with a worker that returns its input.

    Raises:
        NotInstalled: It is not there.
    """

    name = MOSEC

    def __init__(self, venv: Path) -> None:
        _program(venv, "mosec", "install-mosec")
        self._python = venv / "bin" / "python"

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """It serves its own echo in place of the model, in batches of the model's size."""
        if not isinstance(model, HandlerModel):
            raise TypeError(f"mosec stands in for handlers that echo, not for {model.name}")
        echo = [
            str(SOURCES / "mosec_echo.py"),
            "--path",
            model.probe.path,
            "--batch-size",
            str(model.config["batchSize"]),
        ]
        return [str(self._python), *echo, "--address", "127.0.0.1", "--port", str(ports.http)]


class _Bare(_Foreground):
    def __init__(self, name: str, python: str, module: str, *, grpc: bool = False) -> None:
        self.name = name
        self.has_http = not grpc
        self.environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "frontend")])}
        self._start = [python, "-m", module]

    def command(self, folder: Path, ports: Ports, model: BenchmarkModel) -> list[str]:
        """It needs nothing but a port."""
        return [*self._start, str(ports.http if self.has_http else ports.grpc)]


def bare_aiohttp(python: str) -> Launcher:
    """The yardstick for HTTP."""
    return _Bare(BARE_AIOHTTP, python, "benchmarks.bare_aiohttp")


def bare_grpc(python: str) -> Launcher:
    """The yardstick for gRPC."""
    return _Bare(BARE_GRPC, python, "benchmarks.bare_grpc", grpc=True)


def _program(venv: Path, name: str, script: str) -> Path:
    program = venv / "bin" / name
    if not program.is_file():
        raise NotInstalled(f"There is no {name} in {venv}; scripts/{script} installs it.")
    return program
