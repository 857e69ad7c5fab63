"""Tokens: the key file, who gets in, and new keys."""

import json
import stat
from datetime import UTC, datetime, timedelta

import pytest

from torchserve_py.base.logs import access_log
from torchserve_py.endpoints.credentials import SentKey
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.ops.keys.generated_keys import GeneratedKeys

REFUSED = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
ROTATION_REFUSED = "Token Authentication failed. Token either incorrect, expired, or not provided correctly"


@pytest.fixture
async def guarded(start):
    return await start(disable_token_authorization=False)


def bearer(serving, kind):
    return {"Authorization": f"Bearer {keys(serving.key_file)[kind]}"}


def keys(path):
    return {kind: entry["key"] for kind, entry in json.loads(path.read_text()).items()}


async def test_the_key_file(guarded):
    assert stat.S_IMODE(guarded.key_file.stat().st_mode) == 0o600
    content = json.loads(guarded.key_file.read_text())
    assert list(content) == ["management", "inference", "API"]
    assert list(content["inference"]) == ["key", "expiration time"]
    assert list(content["API"]) == ["key"]
    assert len({len(key) for key in keys(guarded.key_file).values()} | {8}) == 1
    assert len(set(keys(guarded.key_file).values())) == 3
    left = datetime.fromisoformat(content["inference"]["expiration time"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(minutes=60)
    assert content["inference"]["expiration time"].endswith("Z")
    assert [path.name for path in guarded.key_file.parent.iterdir()] == ["key_file.json"]


@pytest.mark.parametrize(
    ("endpoint", "method", "path", "kind"),
    [
        ("inference", "POST", "/predictions/noop", "inference"),
        ("inference", "GET", "/ping", "inference"),
        ("management", "GET", "/models", "management"),
        ("management", "GET", "/v1/models/noop", "management"),
    ],
)
async def test_each_endpoint_wants_its_own_key(guarded, endpoint, method, path, kind):
    other = "management" if kind == "inference" else "inference"
    key = keys(guarded.key_file)[kind]
    wrong = [
        {},
        bearer(guarded, other),
        bearer(guarded, "API"),
        {"Authorization": key},
        {"Authorization": f"Bearer {key}x"},
        {"Authorization": f"Api-Key {key}x"},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer é"},
    ]
    for headers in wrong:
        answer = await guarded.request(method, path, endpoint=endpoint, headers=headers)
        assert answer.status == 400
        assert answer.json() == {"code": 400, "type": "InvalidKeyException", "message": REFUSED}
    good = [
        bearer(guarded, kind),
        *({"Authorization": f"{scheme} {key}"} for scheme in ("Api-Key", "bearer", "BEARER")),
    ]
    for headers in good:
        answer = await guarded.request(method, path, endpoint=endpoint, headers=headers)
        assert answer.status == 200


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [("metrics", "/metrics"), ("inference", "/live"), ("inference", "/ready"), ("inference", "/health")],
)
async def test_some_paths_are_open(guarded, endpoint, path):
    assert (await guarded.request("GET", path, endpoint=endpoint)).status == 200


@pytest.mark.parametrize(("kind", "path"), [("inference", "/ping"), ("management", "/models")])
async def test_rotation(guarded, kind, path):
    old = bearer(guarded, kind)
    before = keys(guarded.key_file)
    answer = await guarded.request("GET", f"/token?type={kind}", endpoint="management", headers=bearer(guarded, "API"))
    assert (answer.status, answer.body) == (200, b"\n")
    after = keys(guarded.key_file)
    assert {name for name in before if before[name] != after[name]} == {kind}
    assert (await guarded.request("GET", path, endpoint=kind, headers=old)).status == 400
    assert (await guarded.request("GET", path, endpoint=kind, headers=bearer(guarded, kind))).status == 200


@pytest.mark.parametrize(
    ("query", "kind"), [("?type=inference", "management"), ("?type=API", "API"), ("", "API"), ("?type=x", "API")]
)
async def test_rotation_refused(guarded, query, kind):
    before = guarded.key_file.read_text()
    answer = await guarded.request("GET", f"/token{query}", endpoint="management", headers=bearer(guarded, kind))
    assert answer.status == 400
    assert answer.json() == {"code": 400, "type": "InvalidKeyException", "message": ROTATION_REFUSED}
    assert guarded.key_file.read_text() == before


async def test_only_the_path_is_a_rotation(guarded):
    answer = await guarded.request(
        "GET", "/models?x=/token", endpoint="management", headers={**bearer(guarded, "management"), "X-Note": "/token"}
    )
    assert "models" in answer.json()
    api_key = bearer(guarded, "API")
    answer = await guarded.request("GET", "/token/x?type=inference", endpoint="management", headers=api_key)
    assert answer.status == 404


async def test_without_authorization_there_are_no_keys(serving):
    assert not serving.key_file.exists()
    assert (await serving.request("GET", "/token?type=inference", endpoint="management")).status == 404


async def test_tokens_are_not_logged(start, caplog):
    caplog.set_level("DEBUG")
    guarded = await start(disable_token_authorization=False, access_log=True)
    await guarded.request("GET", "/ping", headers=bearer(guarded, "inference"))
    await guarded.request("GET", "/token?type=inference", endpoint="management", headers=bearer(guarded, "API"))
    access_log.flush()
    for key in keys(guarded.key_file).values():
        assert key not in caplog.text


async def test_the_key_file_goes_with_the_server(guarded):
    await guarded.endpoints.close()
    assert not guarded.key_file.exists()


def test_keys_expire(tmp_path):
    now = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
    tokens = GeneratedKeys(tmp_path / "keys.json", 2.5, lambda: now)
    key = keys(tmp_path / "keys.json")["inference"]
    now += 149
    credential = tokens.admit(TokenType.inference, SentKey(key, given=True))
    now += 1
    with pytest.raises(EndpointError, match="expired"):
        tokens.admit(TokenType.inference, SentKey(key, given=True))
    with pytest.raises(EndpointError, match="expired"):
        credential.check()
    tokens.rotate("inference", SentKey(keys(tmp_path / "keys.json")["API"], given=True))
    tokens.admit(TokenType.inference, SentKey(keys(tmp_path / "keys.json")["inference"], given=True))
    with pytest.raises(EndpointError, match="incorrect"):
        credential.account("m")


def test_a_lifetime_beyond_the_calendar_is_for_ever(tmp_path):
    tokens = GeneratedKeys(tmp_path / "keys.json", 1e15)
    tokens.admit(TokenType.management, SentKey(keys(tmp_path / "keys.json")["management"], given=True))


def test_a_key_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(OSError, match="keys"):
        GeneratedKeys(tmp_path / "missing" / "keys.json", 60)
