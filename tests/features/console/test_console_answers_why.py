"""The console in a real browser: problems with their tracebacks, events, the server, a chat, and no barrier (axe)."""

import json
from collections.abc import Iterator
from pathlib import Path

import axe_core_python
import pytest
import requests
from selenium.webdriver.common.keys import Keys
from tests.e2e.browser import Browser, chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import RunningServer, model_folder

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
FAILING = """
def handle(data, context):
    if data and data[0]["body"] == "fail":
        raise ValueError("no such customer")
    return data and ["ok" for row in data]
"""
CHAT = """
import json

from ts.handler_utils.utils import send_intermediate_predict_response


def handle(data, context):
    if data is None:
        return None
    (row,) = data
    said = row["body"]["messages"][-1]["content"]
    context.set_response_content_type(0, "text/event-stream")
    for word in ["You ", "said ", said]:
        chunk = json.dumps({"choices": [{"delta": {"content": word}}]})
        send_intermediate_predict_response([f"data: {chunk}\\n\\n"], context.request_ids, "ok", 200, context)
    return ["data: [DONE]\\n\\n"]
"""
COUNTING = """
def handle(data, context):
    return data and ["counted" for row in data]
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        yield window


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "failing": model_folder(folder, "failing", FAILING),
        "chat": model_folder(folder, "chat", CHAT, "openai: true\n"),
        "counting": model_folder(folder, "counting", COUNTING, "sequenceBatching: true\nsequenceMaxIdleMSec: 600000\n"),
    }
    with RunningServer(models, {"drain_timeout": 0}, flags=("--enable-model-api",)) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> ConsolePage:
    browser.resize(1280, 900)
    browser.prefer("dark")
    browser.complaints()
    return ConsolePage(browser, server)


def fail(page: ConsolePage) -> None:
    headers = {"Authorization": f"Bearer {page.keys['inference']}", "content-type": "text/plain"}
    answer = requests.post(f"{page.server.inference}/predictions/failing", data="fail", headers=headers, timeout=60)
    assert answer.status_code == 503


def test_the_last_tracebacks_are_shown_first_with_their_requests(page: ConsolePage) -> None:
    page.open()
    page.see(".models tbody", "failing")
    fail(page)
    page.see(".tracebacks", "failing_1.0 ValueError: no such customer")
    page.press(".tracebacks summary")
    page.see(".tracebacks pre", "raise ValueError")
    page.see(".tracebacks .note", r"Requests: \S+")
    page.see(".tile", r"% of the last minute")
    assert page.browser.complaints() == []


def test_events_are_told(page: ConsolePage) -> None:
    page.open("events")
    page.see(".timeline", r"failing 1\.0 registered")
    page.see(".timeline", r"chat 1\.0 worker \d+ is ready")
    url = f"{page.server.management}/models/failing?min_worker=2&synchronous=true"
    requests.put(url, headers={"Authorization": f"Bearer {page.keys['management']}"}, timeout=60)
    page.see(".timeline", r"failing 1\.0 scaled from 1 to 2 workers")


def test_the_server_shows_its_machine_and_settings(page: ConsolePage) -> None:
    page.open("server")
    page.see(".settings", r"Memory of the machine\s+[\d.]+ GB of")
    page.write("input[type=search]", "drain_timeout")
    page.see(".configuration tbody", r"drain_timeout\s+0\s+\S+config\.properties:\d+")


def test_a_chat_streams(page: ConsolePage) -> None:
    page.open("models", "chat", "1.0", "chat")
    page.write(".say textarea", "hello")
    page.type(Keys.ENTER)
    page.see(".chat .assistant", "You said hello")
    page.see(".chat .assistant small", "first part after")
    page.press(".say button", "New conversation")
    assert page.text(".chat") == ""
    page.press("[role=tab]", "Live")
    page.see(".chart:not([hidden]) figcaption", "Until the first part of a stream")
    page.see(".chart:not([hidden]) figcaption", "From one part to the next")


def test_the_slowest_requests_and_the_steps_of_a_sequence_are_shown_with_their_ids(page: ConsolePage) -> None:
    authorization = {"Authorization": f"Bearer {page.keys['inference']}", "content-type": "text/plain"}
    for number in range(3):
        headers = {"ts_request_sequence_id": "ada", "x-request-id": f"step-{number}", **authorization}
        url = f"{page.server.inference}/predictions/counting"
        assert requests.post(url, data="x", headers=headers, timeout=60).status_code == 200
    page.open("models", "counting", "1.0", "live")
    page.see(".finished tbody", r"ms \d.*ms 200 \d+ step-\d")
    assert "first part" not in page.text(".chart figcaption"), "it does not stream"
    page.press("[role=tab]", "Sequences")
    page.press("button.link", "ada")
    page.see(".steps h2", "Steps of ada")
    page.see(".steps tbody", r"(?s)step-0.*step-1.*step-2")
    assert page.browser.complaints() == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_axe_finds_no_barrier(page: ConsolePage, scheme: str) -> None:
    page.browser.prefer(scheme)
    fail(page)
    tabs = [("models", "failing", "1.0", tab) for tab in ("live", "workers", "try", "settings")]
    tabs.append(("models", "counting", "1.0", "sequences"))
    for segments in ((), ("events",), ("server",), ("models", "chat", "1.0", "chat"), *tabs):
        page.open(*segments)
        page.find("h1")
        page.run(AXE)
        found = page.browser.execute_async_script(
            "const done = arguments[0]; axe.run().then((all) => done(JSON.stringify(all)))"
        )
        results = json.loads(found)
        told = [(each["id"], [node["html"] for node in each["nodes"]]) for each in results["violations"]]
        assert told == [], segments
        assert "aria-roles" in [each["id"] for each in results["passes"]]  # it has looked


def test_nothing_stays_green_when_the_server_is_gone(page: ConsolePage) -> None:
    page.open()
    page.see(".models tbody", "failing")
    page.server.kill_everything()
    page.see("#state", "reconnecting")
    assert page.run("return document.getElementById('main').classList.contains('stale')")
    assert "grayscale" in page.run("return getComputedStyle(document.getElementById('main')).filter")
