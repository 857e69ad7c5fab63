"""A real Prometheus for a test: scrapes a server every second, with the rules of ``deploy/prometheus``."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import requests
import yaml
from tests.e2e.running_server import DEADLINE, ROOT, eventually
from tests.ports import free_ports
from tests.programs import need_program

DEPLOY = ROOT / "deploy" / "prometheus"


class Prometheus:
    """Started with the configuration of ``deploy/``, another target and shorter intervals.

    Args:
        target: The address of the metrics listener, without a scheme.
        directory: An empty directory.
        hasty: Whether minutes in the rules are seconds, so that alerts fire soon.
    """

    def __init__(self, target: str, directory: Path, *, hasty: bool = False) -> None:
        (port,) = free_ports(1)
        self.address = f"http://127.0.0.1:{port}"
        settings = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        rules = {name: (DEPLOY / name).read_text() for name in settings["rule_files"]}
        for name, text in rules.items():
            # A rate needs two scrapes, which a busy machine may delay.
            hastened = re.sub(r"\[\d+m\]", "[15s]", re.sub(r"for: \d+m", "for: 1s", text))
            (directory / name).write_text(hastened if hasty else text)
        settings["rule_files"] = list(rules)
        settings["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        config = directory / "prometheus.yaml"
        config.write_text(yaml.safe_dump(settings))
        self._output = directory / "output"
        self._command = [
            need_program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Prometheus:
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        eventually(self._is_ready, "Prometheus is ready")
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(DEADLINE)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._output.read_text()
        try:
            return requests.get(f"{self.address}/-/ready", timeout=DEADLINE).ok
        except requests.ConnectionError:
            return False

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of the API.

        Raises:
            AssertionError: Prometheus refuses the request, because the expression is wrong, say.
        """
        answer = requests.get(f"{self.address}/api/v1/{path}", params=parameters, timeout=DEADLINE).json()
        assert answer["status"] == "success", f"{parameters}: {answer}"
        return answer["data"]

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return the labels and the value of each series that an expression gives now."""
        result = self.get("query", query=expression)["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]
