"""Token authorization, which is on unless it is switched off."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import RunningServer, eventually, model_folder

ECHO = """
def handle(data, context):
    return None if data is None else [row["body"] for row in data]
"""

REFUSED = {
    "code": 400,
    "type": "InvalidKeyException",
    "message": "Token Authorization failed. Token either incorrect, expired, or not provided correctly",
}
NOT_ROTATED = {
    "code": 400,
    "type": "InvalidKeyException",
    "message": "Token Authentication failed. Token either incorrect, expired, or not provided correctly",
}


class Keys:
    """The key file of a server."""

    def __init__(self, server: RunningServer) -> None:
        self.path = server.directory / "key_file.json"

    @property
    def content(self) -> dict[str, dict[str, str]]:
        content: dict[str, dict[str, str]] = json.loads(self.path.read_text())
        return content

    def bearer(self, kind: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.content[kind]['key']}"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models"), "echo", ECHO)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    with RunningServer({"echo": folder}, {"drain_timeout": 1}, flags=("--enable-model-api",)) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def keys(server: RunningServer) -> Keys:
    return Keys(server)


def get(url: str, headers: dict[str, str] | None = None) -> requests.Response:
    return requests.get(url, headers=headers, timeout=180)


def refused(response: requests.Response) -> bool:
    return response.status_code == 400 and response.json() == REFUSED


def test_the_key_file_is_for_the_servers_user_only(keys: Keys) -> None:
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert set(keys.content) == {"management", "inference", "API"}
    assert set(keys.content["inference"]) == {"key", "expiration time"}
    assert set(keys.content["API"]) == {"key"}
    assert all(len(entry["key"]) == 8 for entry in keys.content.values())
    assert len({entry["key"] for entry in keys.content.values()}) == 3


def test_the_log_tells_where_the_keys_are(server: RunningServer, keys: Keys) -> None:
    assert f"Requests need a key of {keys.path}; torchserve-py key prints" in server.log()


def test_each_token_opens_its_own_api(server: RunningServer, keys: Keys) -> None:
    predictions, models = f"{server.inference}/predictions/echo", f"{server.management}/models"
    assert get(predictions, keys.bearer("inference")).status_code == 200
    assert get(f"{server.inference}/ping", keys.bearer("inference")).status_code == 200
    assert get(models, keys.bearer("management")).status_code == 200
    assert refused(get(predictions, keys.bearer("management")))
    assert refused(get(models, keys.bearer("inference")))
    assert refused(get(models, keys.bearer("API")))


def test_without_a_good_token_nothing_opens(server: RunningServer, keys: Keys) -> None:
    key = keys.content["inference"]["key"]
    for header in (None, "", key, f"Basic {key}", "Bearer ", "Bearer wrong", f"Bearer {key}x"):
        assert refused(get(f"{server.inference}/predictions/echo", (header and {"Authorization": header}) or None))
    assert refused(get(f"{server.inference}/ping"))
    assert refused(requests.post(f"{server.management}/models", params={"url": "x"}, timeout=180))
    # What is not there is not told either.
    assert refused(get(f"{server.inference}/predictions/ghost"))


def test_metrics_and_probes_are_open(server: RunningServer) -> None:
    assert get(f"{server.metrics}/metrics").status_code == 200
    assert get(f"{server.inference}/live").status_code == 200
    assert get(f"{server.inference}/ready").status_code == 200


@pytest.mark.parametrize("kind", ["inference", "management"])
def test_rotation_replaces_a_token(server: RunningServer, keys: Keys, kind: str) -> None:
    url = {"inference": f"{server.inference}/ping", "management": f"{server.management}/models"}[kind]
    before, old = keys.content, keys.bearer(kind)
    rotated = get(f"{server.management}/token?type={kind}", keys.bearer("API"))
    assert (rotated.status_code, rotated.text) == (200, "\n")
    assert refused(get(url, old))
    assert get(url, keys.bearer(kind)).status_code == 200
    unchanged = set(before) - {kind}
    assert {name: before[name] for name in unchanged} == {name: keys.content[name] for name in unchanged}
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600


def test_rotation_needs_the_api_key_and_a_known_type(server: RunningServer, keys: Keys) -> None:
    before = keys.content
    for query, headers in (
        ("type=management", keys.bearer("management")),
        ("type=management", None),
        ("type=API", keys.bearer("API")),
        ("type=", keys.bearer("API")),
        ("", keys.bearer("API")),
    ):
        response = get(f"{server.management}/token?{query}", headers)
        assert (response.status_code, response.json()) == (400, NOT_ROTATED)
    assert keys.content == before


def test_a_header_that_mentions_token_is_no_rotation(server: RunningServer, keys: Keys) -> None:
    response = get(f"{server.management}/models", {**keys.bearer("management"), "X-Note": "see /token?type=management"})
    assert response.json()["models"][0]["modelName"] == "echo"


def test_tokens_expire_and_rotation_renews_them(folder: Path) -> None:
    properties: dict[str, Any] = {"drain_timeout": 1, "token_expiration_min": 0.005}
    with RunningServer({"echo": folder}, properties, flags=()) as server:
        keys = Keys(server)
        ping = f"{server.inference}/ping"

        def renewed() -> bool:
            rotated = get(f"{server.management}/token?type=inference", keys.bearer("API"))
            assert rotated.status_code == 200
            return get(ping, keys.bearer("inference")).status_code == 200

        eventually(lambda: refused(get(ping, keys.bearer("inference"))), "the token has expired")
        eventually(renewed, "a new token opens the API before it expires as well")
        path = keys.path
        assert server.terminate() == 0
        assert not path.exists()
