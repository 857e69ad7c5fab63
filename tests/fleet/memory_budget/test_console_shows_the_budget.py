"""The console in a real browser: the budget, what becomes of models that load on demand, and why."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from tests.e2e import orders
from tests.e2e.browser import chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.gate import Gate
from tests.e2e.running_server import RunningServer, model_folder

ON_DEMAND = "minWorkers: 0\nloading: on_demand\n"
#: Loading waits at a gate: until then a worker counts for what the configuration says.
GATED = orders.HANDLER.replace(
    "        self.directory =",
    '        wait_for(context.system_properties["model_dir"] + "/gate")\n        self.directory =',
)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ConsolePage]:
    models = {name: model_folder(tmp_path, name, GATED, f"{ON_DEMAND}memory: 60MB\n") for name in "ab"}
    with (
        RunningServer(models, {"memory_budget": "100MB", "drain_timeout": 0}, flags=("--enable-model-api",)) as running,
        chromium() as browser,
    ):
        running.wait_ready()
        browser.resize(1280, 900)
        yield ConsolePage(browser, running)


def predict(page: ConsolePage, model: str) -> None:
    headers = {"Authorization": f"Bearer {page.keys['inference']}", "content-type": "text/plain"}
    url = f"{page.server.inference}/predictions/{model}"
    assert requests.post(url, data="x", headers=headers, timeout=180).status_code == 200


def test_the_budget_and_the_state_of_models_are_shown(page: ConsolePage, tmp_path: Path) -> None:
    page.open()
    page.see(".budgets", r"host\s+0 B of 100 MB")
    page.see(".models tbody", r"a 1\.0\s*unloaded")
    gate = Gate(tmp_path / "a")
    with ThreadPoolExecutor(1) as clients:
        asked = clients.submit(predict, page, "a")
        gate.wait_until_reached()
        page.see(".budgets", r"host\s+60 MB of 100 MB")
        gate.open()
        asked.result()
    page.see(".models tbody", r"a 1\.0\s*1 / 1")
    assert page.browser.complaints() == []


def test_the_timeline_says_why_the_number_of_workers_changed(page: ConsolePage, tmp_path: Path) -> None:
    page.open("events")
    Gate(tmp_path / "a").open()
    predict(page, "a")
    page.see(".timeline", r"a 1\.0 from 0 to 1 workers: 1 request waits")
