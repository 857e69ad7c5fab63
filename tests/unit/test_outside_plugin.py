"""The package in `docs/guide_plugin`, outside the tree, adds an endpoint, a store and a `model-config.yaml` key."""

import os
import shutil
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, eventually, model_folder

from torchserve_py.plugins import ENTRY_POINTS

PACKAGE = ROOT / "docs" / "guide_plugin"
MOST_LINES = 150
WAIT = f"""
{WAITING}

def wait_if_asked():
    gate = os.path.join(os.path.dirname(__file__), "gate")
    if os.path.exists(gate + ".closed"):
        wait_for(gate)
"""
COUNT = """
from ts.sequence import SequenceCache


class Handler:
    def initialize(self, context):
        self.cache = SequenceCache(context)

    def handle(self, data, context):
        return [self.count(context.get_sequence_id(index)) for index in range(len(data))]

    def count(self, sequence_id):
        wait_if_asked()
        self.cache[sequence_id] = self.cache.get(sequence_id, 0) + 1
        return str(self.cache[sequence_id])
"""
LOGGED = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.count(context, row) for row in range(len(data))]

    def count(self, context, row):
        wait_if_asked()
        context.state[row] = context.state.get(row, 0) + 1
        context.state.append(row, 1)
        return str(context.state[row])

    def rebuild(self, states, entries):
        return [(state or 0) + sum(ones) for state, ones in zip(states, entries)]
"""
CONFIG = """
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 10
maxSequenceJobQueueSize: 10
guide: Send anything.
handler: {{cache: {{store: folder, path: {path}}}}}
"""


def installed(folder: Path) -> Path:
    """Write what pip writes; return where the package is found."""
    shutil.copytree(PACKAGE / "guide", folder / "guide", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    information = folder / f"{project['name']}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: guide\nVersion: 1.0\n")
    entries = (f"{name} = {place}\n" for name, place in project["entry-points"][ENTRY_POINTS].items())
    (information / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{''.join(entries)}")
    return folder


def test_it_is_short() -> None:
    assert sum(path.read_text().count("\n") for path in PACKAGE.rglob("*.py")) <= MOST_LINES


@pytest.mark.parametrize("handler", [COUNT, LOGGED], ids=["state", "log"])
def test_a_package_adds_an_endpoint_a_store_a_key_and_a_metric(tmp_path: Path, handler: str) -> None:
    package = installed(tmp_path / "site")
    path = os.pathsep.join(map(str, (package, ROOT / "frontend", ROOT / "backend")))
    model = model_folder(tmp_path, "count", WAIT + handler, CONFIG.format(path=tmp_path / "states"))
    with RunningServer({"count": model}, environment={"PYTHONPATH": path}) as server:
        server.wait_ready()

        def step() -> str:
            headers = {"ts_request_sequence_id": "s"}
            answer = requests.post(f"{server.inference}/predictions/count", b"", headers=headers, timeout=DEADLINE)
            return answer.text

        def describe() -> dict[str, str]:
            [version] = requests.get(f"{server.management}/models/count", timeout=DEADLINE).json()
            [worker] = version["workers"]
            return worker

        told = requests.get(f"{server.inference}/guide/count", timeout=DEADLINE)
        assert (told.status_code, told.text) == (200, "Send anything.")
        metrics = requests.get(f"{server.metrics}/metrics", timeout=DEADLINE).text
        assert 'guide_asked{model_name="count",} 1.0' in metrics

        assert [step(), step()] == ["1", "2"]
        killed = int(describe()["pid"])
        psutil.Process(killed).kill()
        eventually(
            lambda: describe()["status"] == "READY" and int(describe()["pid"]) != killed, "another worker is ready"
        )
        assert step() == "3"

        gate = Gate(model)
        (model / "gate.closed").touch()
        with ThreadPoolExecutor() as pool:
            running = pool.submit(step)
            gate.wait_until_reached()
            (model / "gate.closed").unlink()  # the next worker runs the step without waiting
            psutil.Process(int(describe()["pid"])).kill()
            assert running.result() == "4"

        (model / "model-config.yaml").write_text("guide: 5")
        refused = requests.post(f"{server.management}/models?url={model}&model_name=other", timeout=DEADLINE)
        assert "guide is 5 (int), it must be a text" in refused.text
