"""Models with a journal, what their journals hold, and the command that replays them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually


def model(folder: Path, name: str, version: str, handler: str, config: str) -> Path:
    place = folder / f"{name}-{version}"
    (place / "MAR-INF").mkdir(parents=True)
    manifest = {"model": {"modelName": name, "modelVersion": version, "handler": "handler.py"}}
    manifest["model"]["configFile"] = "model-config.yaml"
    (place / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    (place / "handler.py").write_text(handler)
    (place / "model-config.yaml").write_text(config)
    return place


def replay(server: RunningServer, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit status and its report."""
    done = subprocess.run(
        [sys.executable, "-m", "torchserve_py.cli", "replay", *arguments, "--server", server.inference, "--json"],
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.rglob("*.jsonl")) for line in file.read_text().splitlines()]


def wait_for_records(folder: Path, count: int) -> list[dict[str, Any]]:
    return eventually(lambda: found if len(found := records(folder)) >= count else [], f"{count} records")


def register(server: RunningServer, place: Path) -> None:
    """Register a version with one worker."""
    wanted = {"url": str(place), "initial_workers": "1", "synchronous": "true"}
    answer = requests.post(f"{server.management}/models", params=wanted, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
