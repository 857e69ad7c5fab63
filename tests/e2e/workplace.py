"""A directory in which a user works: a checkout's handlers, a model store, the installed commands, ports of its own."""

from __future__ import annotations

import configparser
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
from tests.e2e.running_server import DEADLINE, HANDLERS, ROOT
from tests.e2e.terminal import Terminal
from tests.ports import free_ports

#: The ports that the documentation speaks of: inference, management, metrics; gRPC inference, gRPC management.
DOCUMENTED_PORTS = (8080, 8081, 8082, 7070, 7071)


class Workplace:
    """The commands of setup.cfg are on the path, and a server started here uses free ports and its own pid file.

    Args:
        directory: An empty directory.
        properties: Further lines of the server's config.properties.
    """

    def __init__(self, directory: Path, properties: Mapping[str, Any] | None = None) -> None:
        self.directory = directory
        self._runs = 0
        self._foreground: subprocess.Popen[bytes] | None = None
        self.ports = free_ports(len(DOCUMENTED_PORTS))
        self.inference, self.management, self.metrics = (f"http://127.0.0.1:{port}" for port in self.ports[:3])
        shutil.copytree(HANDLERS, directory / "handlers", ignore=shutil.ignore_patterns("__pycache__", "*.pt"))
        self.pid_file = directory / "tmp" / ".model_server.pid"
        for name in ("model_store", "tmp", "bin"):
            (directory / name).mkdir()
        self._install_commands(directory / "bin")
        self.config = directory / "tmp" / "config.properties"
        lines = {
            "inference_address": self.inference,
            "management_address": self.management,
            "metrics_address": self.metrics,
            "grpc_inference_port": self.ports[3],
            "grpc_management_port": self.ports[4],
            "default_workers_per_model": 1,
            "drain_timeout": 1,
            **(properties or {}),
        }
        self.config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(directory / "bin"), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "frontend"), str(ROOT / "backend")]),
            "TMPDIR": str(directory / "tmp"),
            "TS_CONFIG_FILE": str(self.config),
        }
        for name, further in (("curl", ""), ("curl-strict", "fail\n")):
            (directory / name).mkdir()
            (directory / name / ".curlrc").write_text(f"silent\nshow-error\nmax-time = 60\n{further}")

    def __enter__(self) -> Workplace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_foreground()
        self.kill_server()

    def localize(self, text: str) -> str:
        """Return ``text`` with this workplace's ports in place of those of the documentation."""
        for documented, own in zip(DOCUMENTED_PORTS, self.ports, strict=True):
            text = text.replace(f"localhost:{documented}", f"localhost:{own}")
            text = text.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{own}")
            text = text.replace(f"_port={documented}", f"_port={own}")
        return text

    def run(self, command: str, *, strict: bool = False, terminal: bool = False) -> tuple[int, str]:
        """Run shell commands and return the exit code and what was printed until they ended.

        A server that they start goes on printing to `output`.

        Args:
            command: One or more lines of shell; the documented ports become this workplace's.
            strict: Whether curl fails when it gets an HTTP error.
            terminal: Whether they print to a terminal.
        """
        self._runs += 1
        self.output.touch()
        output = Terminal(self.output).end if terminal else os.open(self.output, os.O_WRONLY)
        try:
            shell = subprocess.Popen(
                ["bash", "-c", self.localize(command)],
                cwd=self.directory,
                env={**self.environment, "CURL_HOME": str(self.directory / ("curl-strict" if strict else "curl"))},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        finally:
            os.close(output)  # the commands have their own
        code = shell.wait(DEADLINE)
        return code, self.output.read_text(errors="replace")

    def begin(self, command: str) -> None:
        """Start a server that stays in the foreground, in place of the one before."""
        self.end_foreground()
        self._runs += 1
        with self.output.open("wb") as output:
            self._foreground = subprocess.Popen(
                ["bash", "-c", f"exec {self.localize(command)}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def end_foreground(self) -> None:
        """End that server as Ctrl-C does."""
        if self._foreground is not None:
            self._foreground.send_signal(signal.SIGINT)
            self._foreground.wait(DEADLINE)
            self._foreground = None

    @property
    def output(self) -> Path:
        """What the last `run` printed."""
        return self.directory / "tmp" / f"output-{self._runs}"

    @property
    def server(self) -> psutil.Process | None:
        """The server that the pid file names, if it runs."""
        return _named_by(self.pid_file)

    def ports_are_free(self) -> bool:
        """Whether a server could listen here again."""
        for port in self.ports:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return False
        return True

    def kill_server(self) -> None:
        """End the server, further ones with a pid file of their own here, and their workers."""
        servers = map(_named_by, self.directory.rglob(self.pid_file.name))
        running = [each for each in servers if each is not None and "torchserve_py.server" in each.cmdline()]
        processes = [process for server in running for process in (*server.children(recursive=True), server)]
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=DEADLINE)

    @staticmethod
    def _install_commands(folder: Path) -> None:
        """Do what an installer does for ``console_scripts``; ``python`` is this environment's."""
        python = folder / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        setup = configparser.ConfigParser()
        setup.read(ROOT / "setup.cfg")
        for line in setup["options.entry_points"]["console_scripts"].split("\n"):
            if line:
                name, _, target = line.replace(" ", "").partition("=")
                module, _, function = target.partition(":")
                script = folder / name
                script.write_text(
                    f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
                )
                script.chmod(0o755)


def _named_by(pid_file: Path) -> psutil.Process | None:
    try:
        return psutil.Process(int(pid_file.read_text()))
    except (FileNotFoundError, psutil.NoSuchProcess):
        return None
