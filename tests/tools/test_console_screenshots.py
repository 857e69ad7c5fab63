"""The pictures of the console in the documentation are taken; `scripts/console-screenshots` renews them."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from PIL import Image
from tests.e2e.browser import chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import HANDLERS, RunningServer, model_folder

HANDLER = """
import random
import time


def handle(data, context):
    if data is None:
        return None
    time.sleep(0.004 + 0.0015 * len(data) + random.expovariate(300))
    if random.random() < 0.004:
        raise ValueError("no such customer")
    return ["ok"] * len(data)
"""
CONFIG = "batchSize: 8\nmaxBatchDelay: 4\nminWorkers: {workers}\nmaxWorkers: {workers}\n"
#: Model, workers, clients, and seconds between the requests of a client.
MODELS = (("fraud-score", 2, 6, 0.04), ("recommender", 1, 3, 0.06), ("speech-to-text", 2, 2, 0.1))


def clients(server: RunningServer, end: threading.Event, name: str, pause: float, number: int) -> None:
    """Send requests until the end; more and fewer in turn."""
    step = 0
    with requests.Session() as session:
        while not end.is_set():
            step += 1
            headers = {"content-type": "text/plain", "ts_request_sequence_id": f"caller-{number}-{step % 20}"}
            session.post(f"{server.inference}/predictions/{name}", data=b"5", headers=headers, timeout=180)
            end.wait(pause * (1.5 + (int(time.monotonic()) // 15 + number) % 3) / 2)


@contextmanager
def busy_server() -> Iterator[RunningServer]:
    """A server with some models that get requests."""
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1, "drain_timeout": 0}
    end = threading.Event()
    names = [*(name for name, *_ in MODELS), "diary"]
    server = RunningServer({name: name for name in names}, properties)
    for name, workers, *_ in MODELS:
        model_folder(server.model_store, name, HANDLER, CONFIG.format(workers=workers))
    shutil.copytree(HANDLERS / "stateful", server.model_store / "diary")
    with server:
        server.wait_ready()
        wanted = [*((name, count, pause) for name, _, count, pause in MODELS), ("diary", 2, 0.05)]
        threads = [
            threading.Thread(target=clients, args=(server, end, name, pause, number))
            for name, count, pause in wanted
            for number in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            yield server
        finally:
            end.set()
            for thread in threads:
                thread.join(60)


def test_the_pictures_of_the_console_are_taken(tmp_path: Path) -> None:
    folder = Path(os.environ.get("CONSOLE_SCREENSHOTS", tmp_path))
    seconds = float(os.environ.get("CONSOLE_SCREENSHOTS_AFTER", "2"))
    with busy_server() as server, chromium() as browser:
        browser.prefer("dark")
        page = ConsolePage(browser, server)
        browser.get(page.url)
        page.see(".models tbody", "(?s)diary.*fraud-score.*recommender.*speech-to-text")
        time.sleep(seconds)  # the charts have that much to show
        for name, target, height in (("console-models", "", 1040), ("console-model", "#/models/fraud-score/1.0", 820)):
            browser.resize(1280, height)
            browser.get(f"{page.url}{target}")
            page.wait_live()
            page.see(".tile", r"Answers per second\s+[1-9]")
            page.see(".u-value", r"\d\d:\d\d:\d\d")
            picture = folder / f"{name}.png"
            assert browser.save_screenshot(str(picture))
            with Image.open(picture) as taken:
                assert taken.size == (1280, height)
                taken.convert("RGB").quantize(256).save(picture, optimize=True)
            assert picture.stat().st_size < 100_000
        assert browser.complaints() == []
