"""The console in a real browser: GPUs, workers that are killed, deployments and scaling, and the end of the server."""

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from PIL import Image, ImageChops
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, eventually, model_folder
from tests.e2e.stand_in_nvml import stand_in_nvml

HANDLER = """
def handle(data, context):
    return data and ["ok" for row in data]
"""
#: The views that an open page may have, but for the last of them, which is the log of a worker.
VIEWS = (("",), ("events",), ("server",), ("models", "plain", "1.0", "workers"))
#: How much greener than red and blue the greenest point is: where something is well, and where nothing is said to be.
GREEN, NOT_GREEN = 60, 10


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    model = model_folder(tmp_path, "plain", HANDLER)
    with RunningServer({"plain": model}, {"drain_timeout": 0}) as running:
        running.wait_ready()
        yield running


def shown(browser: Browser, server: RunningServer) -> ConsolePage:
    browser.resize(1280, 900)
    browser.prefer("dark")
    return ConsolePage(browser, server)


def test_the_gpus_of_the_machine_are_shown_with_their_load_and_memory(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(stand_in_nvml(2))
    library = ":".join(map(str, (tmp_path, ROOT / "frontend", ROOT / "backend")))
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer(properties=properties, environment={"PYTHONPATH": library}) as server:
        page = shown(browser, server)
        page.open_without_key("server")
        for gpu in (0, 1):
            page.see("main", rf"(?m)^{gpu} +50 % +1\.\d+ .B of ")
        assert "No GPU is known" not in page.text("main")


def test_a_worker_that_is_killed_is_an_event_and_so_is_the_next_one(browser: Browser, server: RunningServer) -> None:
    page = shown(browser, server)
    page.open_without_key("events")
    page.see(".timeline", r"plain 1\.0 worker \d+ is ready")
    (worker,) = server.workers()
    worker.kill()
    page.see(".timeline .bad", r"plain 1\.0 worker \d+ ended: was killed by SIGKILL")
    (successor,) = eventually(lambda: [each for each in server.workers() if each != worker], "there is another worker")
    page.see(".timeline .good", rf"plain 1\.0 worker \d+ is ready \(process {successor.pid}\)")


def test_a_deployment_can_be_followed_in_the_events(browser: Browser, server: RunningServer, tmp_path: Path) -> None:
    page = shown(browser, server)
    page.open_without_key("events")
    page.see(".timeline", r"plain 1\.0 registered as the default version")
    following = model_folder(tmp_path, "following", HANDLER)
    manifest = {"model": {"modelName": "plain", "modelVersion": "2.0", "handler": "handler.py"}}
    (following / "MAR-INF").mkdir()
    (following / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    assert server.register(following).status_code == 200
    page.see(".timeline", r"plain 2\.0 registered")
    page.see(".timeline", r"plain 2\.0 worker \d+ is ready")
    assert requests.put(f"{server.management}/models/plain/2.0/set-default", timeout=DEADLINE).status_code == 200
    page.see(".timeline", r"plain 2\.0 is the default version now")
    assert requests.delete(f"{server.management}/models/plain/1.0", timeout=DEADLINE).status_code == 200
    page.see(".timeline", r"plain 1\.0 unregistered")
    told = [line for line in page.text(".timeline").splitlines() if line.startswith("plain") and "worker" not in line]
    assert told == [
        "plain 1.0 unregistered",
        "plain 2.0 is the default version now",
        "plain 2.0 registered",
        "plain 1.0 registered as the default version",
    ]


def test_scaling_is_an_event_though_the_workers_stay_the_same(browser: Browser, server: RunningServer) -> None:
    page = shown(browser, server)
    page.open_without_key("events")
    page.see(".timeline", r"plain 1\.0 worker \d+ is ready")
    assert server.scale("plain", 1, max_worker=3).status_code == 200
    page.see(".timeline", r"plain 1\.0 scaled from 1 to 1 to 3 workers")
    assert server.scale("plain", 2).status_code == 200
    page.see(".timeline", r"plain 1\.0 scaled from 1 to 3 to 2 workers")
    page.see(".timeline", r"(?s)(worker \d+ is ready.*){2}")


def greenest(browser: Browser) -> int:
    """Return by how much the greenest point of the page, as it is drawn, is greener than it is red or blue."""
    red, green, blue = Image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB").split()
    greener = ImageChops.darker(ImageChops.subtract(green, red), ImageChops.subtract(green, blue))
    ((_, most),) = [greener.getextrema()]
    return int(most)


@pytest.fixture
def windows(browser: Browser) -> Iterator[list[str]]:
    """The handles of a window for each of `VIEWS`, and of one more."""
    first, opened = browser.current_window_handle, []
    for _ in range(len(VIEWS) + 1):
        browser.switch_to.new_window("tab")
        opened.append(browser.current_window_handle)
    yield opened
    for each in opened:
        browser.switch_to.window(each)
        browser.close()
    browser.switch_to.window(first)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP], ids=["ended", "killed", "frozen"])
def test_nothing_stays_green_in_any_view_when_the_server_is_gone(
    browser: Browser, server: RunningServer, windows: list[str], number: signal.Signals
) -> None:
    log = ("logs", server.describe("plain")[0]["workers"][0]["id"])
    for window, view in zip(windows, (*VIEWS, log), strict=True):
        browser.switch_to.window(window)
        page = shown(browser, server)
        page.open_without_key(*view)
        page.wait_live()
        eventually(lambda: greenest(browser) > GREEN, f"{view} shows that all is well")
    process = server.server
    process.send_signal(number)
    try:
        for window, view in zip(windows, (*VIEWS, log), strict=True):
            browser.switch_to.window(window)
            page.see("#state", "reconnecting")
            assert greenest(browser) < NOT_GREEN, view
    finally:
        if number is signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
