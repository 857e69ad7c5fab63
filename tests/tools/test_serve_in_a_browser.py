"""`torchserve-py serve` in a browser: pages of other origins hold sessions, and the console offers what works."""

import functools
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
from selenium.webdriver.common.by import By
from tests.e2e.browser import Browser, chromium
from tests.e2e.running_server import ROOT, eventually
from tests.e2e.serve_command import ServeCommand

COUNT = """\
from ts import serve


@serve
def count(step: str, state: dict) -> str:
    state["steps"] = [*state.get("steps", []), step]
    return " ".join(state["steps"])
"""
#: Opens a session and takes two steps, or tells why not.
SESSION = """
const [url, done] = [arguments[0], arguments[1]];
import("./live-session.js").then(async ({ LiveSession }) => {
  const session = await LiveSession.open(url, { contentType: "text/plain", patience: 600_000 });
  await session.step("one");
  done((await session.step("two")).body);
}).catch((error) => done(`${error.name} ${error.status} ${error.message}`));
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *about: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a site with a page and the client for browsers."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text('<!doctype html><link rel="icon" href="data:,"><title>A page</title>')
    shutil.copy(ROOT / "frontend" / "torchserve_py" / "client" / "live-session.js", folder)
    site = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield site.server_address[1]
    site.shutdown()
    site.server_close()


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, pages: int) -> Iterator[ServeCommand]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "count.py").write_text(COUNT)
    (folder / "config.properties").write_text(f"cors_allowed_origin=http://localhost:{pages}\n")
    with ServeCommand(folder, "count.py") as running:
        yield running.wait_until_serving()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as window:
        window.set_script_timeout(60)
        yield window


def told(browser: Browser, command: ServeCommand, page: str) -> Any:
    """Return what becomes of a session that a page opens."""
    browser.get(page)
    return browser.execute_async_script(SESSION, f"{command.base.replace('http', 'ws')}/sequences/count")


def test_one_setting_lets_a_page_of_another_origin_hold_a_session(
    browser: Browser, command: ServeCommand, pages: int
) -> None:
    assert told(browser, command, f"http://localhost:{pages}/") == "one two"
    asked = "fetch(arguments[0], {method: 'POST', body: 'three', headers: {'content-type': 'text/plain',"
    asked += (
        " 'ts_request_sequence_id': 'of-a-page'}}).then((answer) => answer.text()).then(arguments[1], arguments[1])"
    )
    assert browser.execute_async_script(asked, f"{command.base}/count") == "three"


def test_a_page_that_may_not_is_told_the_setting_at_once(browser: Browser, command: ServeCommand, pages: int) -> None:
    refusal = told(browser, command, f"http://127.0.0.1:{pages}/")  # its patience is longer than the script's limit
    assert refusal.startswith("SessionRefused 403 ")
    assert "cors_allowed_origin" in refusal


def test_the_console_offers_nothing_that_the_server_would_refuse(browser: Browser, command: ServeCommand) -> None:
    (console,) = re.findall(r"^Console: (http://\S+)$", command.printed(), re.MULTILINE)
    browser.get(console)
    main = lambda: browser.find_element(By.ID, "main").text  # noqa: E731
    eventually(lambda: "count" in main(), "the model is listed", 120)
    assert "Register" not in main()
    browser.get(f"{console}/#/models/count/1.0/workers")
    eventually(lambda: "ready" in main(), "the worker is shown", 120)
    assert "Unregister" not in main()


def test_the_page_of_the_first_tutorial_goes_on_after_a_reload_and_a_killed_worker(
    browser: Browser, pages: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = (ROOT / "docs" / "tutorials" / "memory.md").read_text()
    (model,) = re.findall(r"^# tally\.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (page,) = re.findall(r"^<!doctype html>\n.*?^</script>\n", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "tally.py").write_text(model)
    (tmp_path / "config.properties").write_text(f"cors_allowed_origin=http://localhost:{pages}\n")
    site = next(each for each in tmp_path_factory.getbasetemp().glob("site*") if not each.is_symlink())
    with ServeCommand(tmp_path, "tally.py") as command:
        command.wait_until_serving()
        own = command.base.removeprefix("http://")
        (site / "tally.html").write_text(page.replace("localhost:8080", own))

        def add(expected: str) -> None:
            browser.get(f"http://localhost:{pages}/tally.html")
            eventually(lambda: browser.execute_script("return document.querySelector('button').onclick !== null"), "on")
            browser.find_element(By.TAG_NAME, "button").click()
            eventually(lambda: browser.find_element(By.TAG_NAME, "output").text == expected, f"the sum is {expected}")

        add("1")
        add("2")
        os.kill(requests.post(f"{command.base}/tally", json=0, timeout=180).json()["worker"], signal.SIGKILL)
        add("3")
        browser.get(f"http://127.0.0.1:{pages}/tally.html")
        said = eventually(lambda: browser.find_element(By.TAG_NAME, "output").text, "the page shows why it cannot")
        assert said.startswith("SessionRefused: ")
        assert "cors_allowed_origin" in said
