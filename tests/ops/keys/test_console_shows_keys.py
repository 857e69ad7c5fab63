"""The console in a real browser: what each key has used."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import yaml
from tests.e2e.browser import chromium
from tests.e2e.console_page import ConsolePage
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

ECHO = """
def handle(data, context):
    return data and [row["body"] for row in data]
"""
KEYS = [
    {"name": "web", "key": "web", "limits": {"requests_per_second": 0.001}},
    {"name": "robots", "key": "robots"},
    {"name": "operator", "key": "operator", "scope": "management"},
]


class PageOfOperator(ConsolePage):
    """The console of a server that was given its keys."""

    @property
    def keys(self) -> dict[str, str]:
        return {"management": "operator"}


@pytest.fixture
def page(tmp_path: Path) -> Iterator[ConsolePage]:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump({"keys": KEYS}))
    with (
        RunningServer({"echo": model_folder(tmp_path, "echo", ECHO)}, {"keys_file": file}, flags=()) as server,
        chromium() as browser,
    ):
        server.wait_ready()
        browser.resize(1280, 900)
        yield PageOfOperator(browser, server)


def ask(page: ConsolePage, key: str) -> int:
    url, headers = f"{page.server.inference}/predictions/echo", {"Authorization": f"Bearer {key}"}
    return requests.post(url, data="x", headers=headers, timeout=DEADLINE).status_code


def test_what_each_key_has_used_is_shown(page: ConsolePage) -> None:
    page.open()
    assert not page.all(".keys")[0].is_displayed()
    assert [ask(page, "web") for _ in range(3)] == [200, 429, 429]
    assert [ask(page, "robots") for _ in range(3)] == [200, 200, 200]
    page.see(".keys tbody", r"robots 3 0 0 3 \S+ ?m?s")
    page.see(".keys tbody", r"web 1 0 2 1 \S+ ?m?s")
    assert page.browser.complaints() == []
