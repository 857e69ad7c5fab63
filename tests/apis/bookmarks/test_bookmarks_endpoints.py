"""The endpoint for single stored sequences: who may use it, what it refuses, and sequences that are damaged or over."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.endpoints.conftest import OpenEndpoints, Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.ports import free_ports
from tests.sequences.sqlite.file_stores import change, open_store, run
from tests.sequences.steps.test_hostile_imports import FIRST_LINE, file_of, head_of, piece_of, sound_piece

from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.sequences.steps.handler_keys import HandlerKeys


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.db"


@pytest.fixture
async def endpoints(start: Start, path: Path) -> OpenEndpoints:
    """A server whose model ``m`` has its sequences in a file, beside one without sequences and one without a store."""
    stored = FakeModel("m", stateful=True)
    stored.is_durable = True
    keys = HandlerKeys.model_validate({"handler": {"cache": {"store": "file", "path": str(path)}}})
    stored.config = replace(stored.config, plugin_keys=PluginKeys((keys,)))
    return await start(FakeServing([stored, FakeModel("in_memory", stateful=True), FakeModel("stateless")]))


async def ask(endpoints: OpenEndpoints, method: str, path: str, **more: object) -> tuple[int, str]:
    answer = await endpoints.request(method, f"/sequences/{path}", endpoint="management", **more)
    return answer.status, answer.body.decode()


@pytest.mark.parametrize(
    ("method", "target", "status", "told"),
    [
        ("GET", "nobody/s", 404, "Model not found: nobody"),
        ("POST", "stateless/s/fork", 400, 'stateless\\" keeps no sequences; set sequenceBatching: true'),
        ("POST", "in_memory/s/rewind?step=1", 501, "in the memory of its workers: only with handler.cache.store: file"),
        ("GET", "m/s", 404, "There is no sequence 's' of model m"),
        ("POST", "m/s/fork?as=a;b", 400, "Parameter as: 'a;b' is not a sequence id; it must not hold ';'"),
        ("POST", "m/s/fork?as=live-x", 403, "is the id of a live session"),
        ("POST", f"m/s/fork?as={'x' * 1001}", 400, "an id has up to 1000 characters"),
        ("POST", "m/s/fork?step=0", 400, "Parameter step: 0 is no number of a step; they are numbered from 1"),
        ("POST", "m/s/rewind", 400, "Parameter step is required"),
        ("POST", "m/s/rewind?step=-1", 400, "Parameter step: -1 is no number"),
        ("POST", "m/s/rewind?step=two", 400, "Parameter step: 'two' is not an integer"),
        ("PUT", "m/s/import", 400, "begins with b''"),
        ("DELETE", "m/s/fork", 405, "not allowed"),
    ],
)
async def test_what_cannot_be_is_refused(
    endpoints: OpenEndpoints, path: Path, method: str, target: str, status: int, told: str
) -> None:
    run(open_store(path), "other", b"1")
    answered, text = await ask(endpoints, method, target)
    assert (answered, told in text) == (status, True), text


async def test_a_model_that_had_no_worker_yet_has_no_store(endpoints: OpenEndpoints) -> None:
    status, text = await ask(endpoints, "GET", "m/s")
    assert (status, "cannot be used: No such file or directory" in text) == (503, True), text


async def test_the_key_for_management_opens_it(start: Start, path: Path) -> None:
    endpoints = await start(disable_token_authorization=False)
    assert (await ask(endpoints, "GET", "noop/s"))[0] == 400


async def test_a_damaged_sequence_and_one_that_is_over(endpoints: OpenEndpoints, path: Path) -> None:
    store = open_store(path)
    for name in ("damaged", "sound"):
        run(store, name, b"1", b"2")
    run(store, "over", b"1", closed="ended")
    status, text = await ask(endpoints, "POST", "m/over/fork")
    assert (status, "the sequence is over (ended), and its state is gone" in text) == (409, True), text
    status, text = await ask(endpoints, "GET", "m/over")
    assert (status, '"state": "ended"' in text, '"stepsWithState": []' in text) == (200, True, True), text
    status, text = await ask(endpoints, "POST", "m/sound/rewind?step=1")
    assert (status, "no state after step 1; the store has its state after step 2." in text) == (409, True), text
    change(path, "UPDATE sequences SET head = x'00' WHERE id = CAST('damaged' AS BLOB)")
    status, text = await ask(endpoints, "POST", "m/damaged/rewind?step=1")
    assert (status, "is damaged: " in text, "torchserve-py store repair" in text) == (500, True, True), text
    assert (await ask(endpoints, "POST", "m/sound/fork?as=f"))[0] == 200


async def test_an_id_may_hold_anything_that_a_path_can(endpoints: OpenEndpoints, path: Path) -> None:
    store = open_store(path)
    names = ("a", "a/", "a/b", "ä b", "a/b/export", "a/fork", "fork")
    for name in names:
        run(store, name, b"1")
    for name in names:
        shown = await endpoints.request("GET", f"/sequences/m/{quote(name, safe='')}", endpoint="management")
        assert (shown.status, json.loads(shown.body)["sequenceId"]) == (200, name)
    for target, name in (("a/b", "a/b"), ("a/b/", "a/b"), ("a%2Ffork/", "a/fork")):
        assert json.loads((await ask(endpoints, "GET", f"m/{target}"))[1])["sequenceId"] == name
    for target in ("a%2Fb", "%C3%A4%20b"):
        assert (await ask(endpoints, "POST", f"m/{target}/fork"))[0] == 200
    file = (await endpoints.request("GET", "/sequences/m/a%2Fb%2Fexport/export", endpoint="management")).body
    assert (await ask(endpoints, "PUT", "m/a%2Fb%2Fexport/import?replace=true", data=file))[0] == 200


async def test_where_the_listener_is_shared_a_handshake_opens_a_live_session(start: Start) -> None:
    address = Address("http", "127.0.0.1", free_ports(1)[0])
    models = FakeServing([FakeModel("m", stateful=True)])
    endpoints = await start(models, inference_address=address, management_address=address, metrics_address=address)
    handshake = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    opened, shown = [await endpoints.request("GET", "/sequences/m/1.0", headers=each) for each in (handshake, {})]
    assert (opened.status, shown.status) == (101, 501)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"head": head_of(incarnation=float("inf"))}, "the head is unreadable: incarnation is a float"),
        ({"head": head_of(token="t\r\nx-evil: 1")}, "its token cannot be 't\\\\r\\\\nx-evil: 1'"),
        ({"head": head_of(token="t" * 1_000_000)}, "(1000000 characters)"),
        ({"time_left": float("nan")}, "nan seconds cannot be left"),
        ({"answers": 5}, "a sequence is unreadable"),
        ({"id": None}, "id has NoneType instead of str"),
    ],
)
async def test_what_is_wrong_with_an_import_is_named_and_nothing_is_stored(
    endpoints: OpenEndpoints, path: Path, change: dict[str, object], told: str
) -> None:
    run(open_store(path), "other", b"1")
    status, text = await ask(endpoints, "PUT", "m/s/import", data=file_of(sound_piece(**change)))
    assert (status, told in text) == (400, True), text
    assert (await ask(endpoints, "GET", "m/s"))[0] == 404


async def test_an_import_that_is_cut_off_or_claims_too_much_is_refused(endpoints: OpenEndpoints, path: Path) -> None:
    run(open_store(path), "other", b"1")
    whole = file_of(sound_piece())
    for file, told in (
        (whole[:-5], "the file ends too early"),
        (whole[:100], "the file ends too early: a piece of it has"),
        (FIRST_LINE + piece_of(b"abc", size=2**39), "a piece of it claims to have 549755813888 bytes"),
        (whole + b"x", "goes on after its end"),
    ):
        status, text = await ask(endpoints, "PUT", "m/s/import", data=file)
        assert (status, told in text) == (400, True), text
