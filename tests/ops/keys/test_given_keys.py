"""Keys that a server is given: in settings, in a file, for an API or for models, until a moment."""

import json
import os
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.fakes import make_settings

from torchserve_py.base.causes import Cause
from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Exceeded
from torchserve_py.endpoints.credentials import SentKey
from torchserve_py.endpoints.failures import EndpointError
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.ops.keys.given_keys import GivenKeys
from torchserve_py.ops.keys.keys_file import KeysFileError, read_keys
from torchserve_py.ops.keys.keys_settings import KeysSettings
from torchserve_py.ops.keys.server_keys import problem_of

INFERENCE, MANAGEMENT = TokenType.inference, TokenType.management
CHALLENGE = 'Bearer realm="torchserve-py"'


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def hashed(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def keys_of(text: str, name: str = "inference_keys") -> Any:
    field = server_settings().model_fields[name]
    kind = next(each for each in field.metadata if hasattr(each, "read"))
    return kind.read(text, Path())


def write(path: Path, *entries: dict[str, Any]) -> Path:
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"keys": entries}))
    return new.replace(path)


@pytest.fixture
async def guarded(start: Any) -> Any:
    return await start(
        FakeServing([FakeModel(), FakeModel("other")]),
        disable_token_authorization=False,
        inference_keys=keys_of(f"first, web:second,sha256:{hashed('third')}, mobile:sha256:{hashed('fourth').upper()}"),
        management_keys=keys_of("boss", "management_keys"),
    )


@pytest.mark.parametrize("key", ["first", "second", "third", "fourth"])
async def test_every_key_of_a_setting_opens_its_api_only(guarded: Any, key: str) -> None:
    assert (await guarded.request("POST", "/predictions/noop", headers=bearer(key))).status == 200
    refused = await guarded.request("GET", "/models", endpoint="management", headers=bearer(key))
    assert (refused.status, refused.json()["type"]) == (403, "ForbiddenException")
    assert refused.json()["message"] == "This key does not open the management API."
    assert 'error="insufficient_scope"' in refused.headers["WWW-Authenticate"]


async def test_a_key_for_management(guarded: Any) -> None:
    assert (await guarded.request("GET", "/models", endpoint="management", headers=bearer("boss"))).status == 200
    assert (await guarded.request("POST", "/predictions/noop", headers=bearer("boss"))).status == 403


@pytest.mark.parametrize("path", ["/predictions/noop", "/v1/models/noop:predict", "/v2/models/noop/infer"])
async def test_a_request_without_a_key_is_told_how_to_send_one(guarded: Any, path: str) -> None:
    refused = await guarded.request("POST", path)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, CHALLENGE)
    assert b"Authorization: Bearer KEY" in refused.body
    refused = await guarded.request("POST", path, headers=bearer("wrong"))
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, f'{CHALLENGE}, error="invalid_token"')


async def test_no_key_file_is_written_and_no_key_is_rotated(guarded: Any) -> None:
    assert not guarded.key_file.exists()
    answer = await guarded.request("GET", "/token?type=inference", endpoint="management", headers=bearer("boss"))
    assert (answer.status, "keys_file" in answer.json()["message"]) == (501, True)


async def test_keys_of_models(start: Any, tmp_path: Path) -> None:
    file = write(tmp_path / "keys.json", {"name": "app", "key": "app", "models": ["noop"]}, {"key": "all"})
    guarded = await start(
        FakeServing([FakeModel(), FakeModel("other")]), disable_token_authorization=False, keys_file=file
    )
    for path in ("/predictions/{}", "/v2/models/{}/infer", "/v1/models/{}:predict"):
        for key, name, is_refused in (("app", "noop", False), ("app", "other", True), ("all", "other", False)):
            answer = await guarded.request("POST", path.format(name), headers=bearer(key), data=b"{}")
            assert (answer.status == 403) == is_refused, (path, key, name)
    assert (await guarded.request("GET", "/ping", headers=bearer("app"))).status == 200
    for key, names in (("app", ["noop"]), ("all", ["noop", "other"])):
        statistics = (await guarded.request("GET", "/v2/models/stats", headers=bearer(key))).json()["model_stats"]
        assert [each["name"] for each in statistics] == names
    refused = await guarded.request("POST", "/predictions/other", headers=bearer("app"))
    assert refused.json()["message"] == "The key 'app' is not for the model 'other'."
    assert refused.headers["WWW-Authenticate"] == f'{CHALLENGE}, error="insufficient_scope"'


def given(path: Path, **more: Any) -> GivenKeys:
    return GivenKeys(KeysSettings(keys_file=path), **more)


def test_a_key_expires(tmp_path: Path) -> None:
    now = datetime(2030, 1, 30, 23, 59, tzinfo=UTC)
    file = write(tmp_path / "keys", {"name": "old", "key": "a", "expires": "2030-01-31"})
    keys = given(file, now=lambda: now)
    keys.admit(INFERENCE, SentKey("a", given=True))
    now += timedelta(minutes=1)
    with pytest.raises(EndpointError, match=r"The key 'old' expired at 2030-01-31T00:00:00\+00:00") as refused:
        keys.admit(INFERENCE, SentKey("a", given=True))
    assert refused.value.failure.status == 401


def test_the_file_replaces_keys_and_damage_does_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = write(tmp_path / "keys", {"key": "old"})
    keys = given(file)
    write(file, {"key": "new"}, {"key": "boss", "scope": "management"})
    keys.reload()
    keys.admit(INFERENCE, SentKey("new", given=True))
    keys.admit(MANAGEMENT, SentKey("boss", given=True))
    with pytest.raises(EndpointError, match="not one of this server's"):
        keys.admit(INFERENCE, SentKey("old", given=True))
    for damage in ('{"keys": [{"key": "sécret"}]}', "[", ""):
        file.write_text(damage)
        keys.reload()
        keys.admit(INFERENCE, SentKey("new", given=True))
    assert "The keys stay as they are: keys_file" in caplog.text
    assert "sécret" not in caplog.text
    file.unlink()
    keys.reload()
    keys.admit(INFERENCE, SentKey("new", given=True))


def test_what_runs_goes_on_to_count_when_the_file_is_read_again(tmp_path: Path) -> None:
    def begin() -> Cause | None:
        account = keys.admit(INFERENCE, SentKey("a", given=True)).account("m")
        assert account is not None
        begun = account.begin(Call((), b""), "m", lambda sequence_id: True)
        return begun.cause if isinstance(begun, Exceeded) else None

    file = write(tmp_path / "keys", {"key": "a", "limits": {"requests_at_once": 1}}, {"key": "b"})
    keys = given(file)
    assert begin() is None
    write(file, {"key": "a", "limits": {"requests_at_once": 2}})
    keys.reload()
    assert [begin(), begin()] == [None, Cause.too_many_at_once]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([{"key": "a b"}], r"keys\[0\].key must be a text of letters"),
        ([{"sha256": "secret"}], r"keys\[0\].sha256 must be 64 hexadecimal digits"),
        ([{"key": "a", "sha256": "0" * 64}], r"keys\[0\] must have either key or sha256"),
        ([{"name": "a"}], r"keys\[0\] must have either key or sha256"),
        ([{"key": "a", "scope": "all"}], r"keys\[0\].scope is 'all'"),
        ([{"key": "a", "scope": "management", "models": ["x"]}], r"keys\[0\].models is only for scope: inference"),
        ([{"key": "a", "scope": "management", "limits": {}}], r"keys\[0\].limits is only for scope: inference"),
        (
            [{"key": "a", "limits": {"requests_at_once": 0}}],
            r"requests_at_once is 0 \(int\), it must be an integer from 1",
        ),
        ([{"key": "a", "limits": {"requests_per_second": "many"}}], r"requests_per_second is 'many'.*a number above 0"),
        ([{"key": "a", "limits": {"requests": 1}}], r"requests is not known; known are requests_per_second"),
        ([{"key": "a", "expires": "soon"}], r"keys\[0\].expires is 'soon'.*2030-01-31"),
        ([{"key": "a", "scopes": "inference"}], r"keys\[0\].scopes is not known; known are name, key"),
        (
            [{"key": "secret", "models": ["x"]}, {"key": "secret"}],
            r"keys\[1\] is the key of keys\[0\], for the same API; keep one entry",
        ),
        (
            [{"key": "secret", "models": ["x"]}, {"key": "b"}, {"sha256": sha256(b"secret").hexdigest().upper()}],
            r"keys\[2\] is the key of keys\[0\], for the same API; keep one entry",
        ),
        ([], "it has no keys"),
        (["secret"], r"keys\[0\] must be a map with a key"),
    ],
)
def test_a_wrong_file_is_told_without_its_keys(tmp_path: Path, entries: list[Any], told: str) -> None:
    file = write(tmp_path / "keys", *entries)
    with pytest.raises(KeysFileError, match=told) as error:
        read_keys(file)
    assert "secret" not in str(error.value)
    settings = make_settings(tmp_path, keys_file=file)
    assert str(error.value) == problem_of(settings)


def test_one_key_may_open_both_apis(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", {"key": "a"}, {"key": "a", "scope": "management"})
    assert [entry.scope for entry in read_keys(file)] == ["inference", "management"]


def test_a_member_of_an_entry_is_given_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("keys:\n  - key: secret\n    models: [x]\n    models: [y]\n")
    with pytest.raises(KeysFileError, match=r"line 4: keys\[0\].models is already given on line 3; keep one$"):
        read_keys(file)


def test_a_missing_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    problem = problem_of(make_settings(tmp_path, keys_file=tmp_path / "keys.yaml"))
    assert problem == f"keys_file {tmp_path / 'keys.yaml'}: No such file or directory"


def test_what_is_no_file_of_keys_is_named_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    fifo, marked = tmp_path / "fifo", tmp_path / "marked"
    os.mkfifo(fifo)
    assert problem_of(make_settings(tmp_path, keys_file=fifo)) == f"keys_file {fifo}: it is a FIFO, not a regular file"
    marked.write_text("\ufeffkeys: [{key: secret}]")
    (entry,) = read_keys(marked)
    assert entry.text == "secret"
    os.truncate(marked, 600 << 20)
    with pytest.raises(KeysFileError, match="larger than"):
        read_keys(marked)


@pytest.mark.parametrize("text", ["a b", "name:", "sha256:abc", "name:sha256:abc", "ü", "name:key:more"])
def test_a_wrong_key_of_a_setting(text: str) -> None:
    with pytest.raises(ValueError, match=r"letters, digits|hexadecimal"):
        keys_of(text)


@pytest.mark.parametrize("right", ["management_keys=key\n", "usage_folder=usage\n"])
def test_a_wrong_key_is_one_mistake_whatever_else_is_set(right: str, tmp_path: Path) -> None:
    (tmp_path / "config.properties").write_text(f"model_store={tmp_path}\ninference_keys=a b\n{right}")
    resolution = Resolution(parse_flags([]), {}, tmp_path)
    assert [error.partition(":")[0] for error in resolution.errors] == ["Invalid configuration"]
    assert "inference_keys" in resolution.errors[0]
    assert not resolution.warnings
