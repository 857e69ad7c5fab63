"""The console with a hundred models and ten thousand open sequences: what it sends and draws stays small."""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import RunningServer, eventually, model_folder

MODELS = 100
SEQUENCES = 10_000
#: Milliseconds of the page's main thread, of a second between two pieces of news.
MOST_WORK = 100
HANDLER = """
def handle(data, context):
    return None if data is None else ["ok"] * len(data)
"""
CONFIG = f"""
sequenceBatching: true
batchSize: 64
maxBatchDelay: 0
sequenceMaxIdleMSec: 3600000
maxNumSequence: {SEQUENCES}
maxSequenceJobQueueSize: 2
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsolePage]:
    folder = tmp_path_factory.mktemp("models")
    many = model_folder(folder, "many", HANDLER, CONFIG)
    properties = {"access_log": "false", "drain_timeout": 0}
    flags = ("--enable-model-api", "--disable-token-auth")
    with RunningServer({"many": many}, properties, flags=flags) as server, chromium() as browser:
        server.wait_ready()
        asyncio.run(fill(server, model_folder(folder, "model", HANDLER)))
        yield ConsolePage(browser, server)


async def fill(server: RunningServer, model: Path) -> None:
    """Register the models, and open the sequences."""
    names = iter(range(SEQUENCES))

    async def open_some(session: aiohttp.ClientSession) -> None:
        for number in names:
            headers = {"ts_request_sequence_id": f"caller-{number:05}"}
            async with session.post(f"{server.inference}/predictions/many", data=b"x", headers=headers) as answer:
                assert answer.status == 200

    async with aiohttp.ClientSession() as session:
        for number in range(MODELS - 1):
            query = {"url": str(model), "model_name": f"model-{number:03}", "initial_workers": "0"}
            async with session.post(f"{server.management}/models", params=query) as answer:
                assert answer.status == 200, await answer.text()
        await asyncio.gather(*(open_some(session) for _ in range(64)))


def work_of(browser: Browser) -> float:
    """Return the milliseconds that the page's main thread has worked so far."""
    metrics = {each["name"]: each["value"] for each in browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]}
    return float(metrics["TaskDuration"]) * 1000


def work_per_second(browser: Browser, seconds: int = 5) -> float:
    """Return the median of the work in each of some seconds."""
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    found = []
    for _ in range(seconds):
        before = work_of(browser)
        time.sleep(1)
        found.append(work_of(browser) - before)
    return statistics.median(found)


def test_a_hundred_models(page: ConsolePage) -> None:
    page.open_without_key()
    page.see(".models .note", "^100 of 100 model versions")
    assert len(page.all(".models tbody tr")) == MODELS
    assert work_per_second(page.browser) < MOST_WORK
    page.write("input[type=search]", "model-07")
    page.see(".models .note", "^10 of 100")
    assert page.browser.complaints() == []


def test_ten_thousand_sequences(page: ConsolePage) -> None:
    page.open_without_key("models", "many", "1.0", "sequences")
    page.see(".note", "10,000 of 10,000 open sequences. The first 100 are shown")
    assert len(page.all("tbody tr")) == 100
    assert work_per_second(page.browser) < MOST_WORK
    page.write("input[type=search]", "-0999")
    page.see(".note", "^10 of 10,000")
    eventually(lambda: page.text("tbody .id").split() == [f"caller-0999{digit}" for digit in range(10)], "those found")
    assert page.browser.complaints() == []
