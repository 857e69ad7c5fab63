"""A real HAProxy for tests, with the configuration of ``deploy/haproxy.cfg`` before servers of this machine."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import requests
from tests.e2e.running_server import DEADLINE, eventually, free_ports
from tests.programs import need_program

CONFIG = Path(__file__).resolve().parents[1] / "deploy" / "haproxy.cfg"


class HAProxy:
    """HAProxy before servers; those that do not run yet may come later.

    Args:
        servers: The addresses of their inference APIs.
    """

    def __init__(self, servers: Sequence[str]) -> None:
        http, metrics = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        self._metrics = f"http://127.0.0.1:{metrics}/metrics"
        lines = [f"    server server{number} {urlsplit(url).netloc}" for number, url in enumerate(servers)]
        text = CONFIG.read_text()
        backend, grpc_backend, rest = (text.index(f"\n{each}\n") for each in _SECTIONS)
        own = re.sub(r"^    server .*\n", "", text[backend:grpc_backend], flags=re.M).rstrip()
        text = f"{text[:backend]}{own}\n" + "\n".join(lines) + "\n" + text[rest:]
        text = re.sub(r"\nfrontend inference_grpc\n(    .*\n)+", "", text)
        text = text.replace("bind :8080", f"bind 127.0.0.1:{http}").replace("127.0.0.1:8404", f"127.0.0.1:{metrics}")
        self._text = text.replace("maxconn 20000", "maxconn 2000")  # of descriptors a test may have few
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> HAProxy:
        with tempfile.NamedTemporaryFile("w", suffix=".cfg") as file:
            file.write(self._text)
            file.flush()
            self._process = subprocess.Popen([need_program("haproxy"), "-db", "-f", file.name])
            eventually(lambda: self.servers_up() is not None, "HAProxy answers")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(DEADLINE)

    def servers_up(self) -> int | None:
        """Return how many servers get requests; None while HAProxy does not answer."""
        assert self._process is not None
        assert self._process.poll() is None, "HAProxy has ended"
        try:
            told = requests.get(self._metrics, timeout=10).text
        except requests.ConnectionError:
            return None
        return len(re.findall(r'^haproxy_server_check_status\{proxy="servers",.*state="L7OK"\} 1$', told, re.M))

    def wait_for(self, count: int) -> None:
        """Wait until so many servers get requests."""
        end = time.monotonic() + DEADLINE
        while (up := self.servers_up()) != count:
            assert time.monotonic() < end, f"{up} servers get requests, {count} should"
            time.sleep(0.05)


_SECTIONS = ("backend servers", "backend grpc_servers", "frontend metrics_of_haproxy")
