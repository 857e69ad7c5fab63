"""The console in a real browser: how versions share a model's requests, and what a shadow answers otherwise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.browser import chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

HANDLER = """
class Handler:
    def initialize(self, context):
        self.version = context.manifest["model"]["modelVersion"]

    def handle(self, data, context):
        return [f"version {self.version}"] * len(data)
"""


def version(folder: Path, name: str) -> Path:
    made = model_folder(folder / name, "said", HANDLER, "minWorkers: 1\n")
    (made / "MAR-INF").mkdir()
    manifest = {
        "model": {"modelName": "said", "modelVersion": name, "handler": "handler.py", "configFile": "model-config.yaml"}
    }
    (made / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ConsolePage]:
    with (
        RunningServer({"said": version(tmp_path, "1")}, {"drain_timeout": 0}, flags=("--enable-model-api",)) as running,
        chromium() as browser,
    ):
        running.wait_ready()
        browser.resize(1280, 900)
        page = ConsolePage(browser, running)
        for each in ("2", "3"):
            query = f"url={version(tmp_path, each)}&model_name=said&initial_workers=1&synchronous=true"
            manage(page, "POST", f"models?{query}")
        yield page


def manage(page: ConsolePage, method: str, path: str, body: Any = None) -> None:
    headers = {"Authorization": f"Bearer {page.keys['management']}"}
    url = f"{page.server.management}/{path}"
    answer = requests.request(method, url, json=body, headers=headers, timeout=DEADLINE)
    assert answer.ok, answer.text


def test_weights_decisions_and_differences_are_shown(page: ConsolePage) -> None:
    page.open("models", "said", "1")
    assert not page.find(".traffic").is_displayed()
    manage(page, "PUT", "models/said/traffic", {"canary": {"version": "2", "steps": [5], "intervalSec": 60}})
    page.see(".traffic .bars", r"1\s+95 %\s+2\s+5 %")
    page.see(".traffic .canary", r"Canary 2: 0 of 600 requests compared so far")
    page.see(".traffic tbody", r"2 begun 5 %")
    manage(page, "DELETE", "models/said/traffic")
    page.see(".traffic tbody", r"2 called off – an operator has changed the traffic")
    manage(page, "PUT", "models/said/traffic/shadow", {"version": "3"})
    page.see(".traffic .shadow", r"Shadow 3 with 100 % of the requests: 0 same, 0 different, 0 failed, 0 dropped")
    headers = {"Authorization": f"Bearer {page.keys['inference']}"}
    assert requests.post(f"{page.server.inference}/predictions/said", headers=headers, timeout=DEADLINE).ok
    page.see(".traffic .shadow", r"0 same, 1 different, 0 failed, 0 dropped; .* on average")
    page.see(".traffic", r"200 version 1\s+200 version 3\s+version 1 became version 3")
    assert page.browser.complaints() == []
