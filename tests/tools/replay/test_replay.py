"""A replay on servers of the test's: order, what a server answers, and servers that are full or go away."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import msgpack
import pytest
from aiohttp import WSMsgType, web
from grpc import aio
from tests.tools.replay.conftest import Serve, address
from tests.tools.replay.recorded import recorded, replayed, step

from torchserve_py.tools.replay import replay
from torchserve_py.tools.replay.http_sender import HttpSender
from torchserve_py.tools.replay.replay import Refused, ServerGone
from torchserve_py.tools.replay.replay_requests import ReplayRequest
from torchserve_py.tools.replay.senders import NotConnected, SentAnswer
from ts.apis.open_inference.protos.infer_pb2 import ModelInferRequest, ModelInferResponse


async def test_a_full_server_is_asked_again(tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_FIRST_PAUSE", 0.001)
    statuses, forms = [429, 503, 200, 503], []

    async def answer(request: web.Request) -> web.Response:
        forms.append(dict(await request.post()))
        return web.Response(status=statuses.pop(0))

    fields = [{"name": "data", "content_type": None, "value": "3", "form": "text"}]
    records = [recorded(1, body=fields, body_form="parameters"), recorded(2, status=503, failed=True)]
    report = await replayed(tmp_path, records, address(await serve(answer)))
    assert (report.equal, report.differing, statuses) == (2, 0, [])
    assert [len(each) for each in forms] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("models", "said"),
    [({"m": "7.0"}, "/v2/models/m/versions/7.0 answers 404: no m"), ({}, "/v2/models/m answers 404: no m")],
)
async def test_a_server_without_the_model_or_that_refuses_the_key_gets_no_request(
    models: dict[str, str], said: str, tmp_path: Path, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.Response:
        assert request.method == "GET"
        return web.Response(status=404, text="no m")

    with pytest.raises(Refused) as refused:
        await replayed(tmp_path, [recorded()], address(await serve(answer)), models=models)
    assert str(refused.value).endswith(said)


async def test_steps_wait_for_those_before_them_and_stop_after_one_without_an_answer(
    tmp_path: Path, serve: Serve
) -> None:
    seen: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.text()
        seen.append((request.headers["ts_request_sequence_id"], body))
        if body == "lost":
            assert request.transport is not None
            request.transport.close()
        return web.Response(text=f"{body} of {request.headers['ts_request_sequence_id']}")

    records = [step(number, "s", body=f"{number}", answer=f"{number} of s") for number in (1, 2)]
    records += [step(3, "s", body="lost"), step(4, "s", body="4"), step(1, "t", body="1", answer="1 of t")]
    records.sort(key=lambda each: each["time"])
    report = await replayed(tmp_path, records, address(await serve(answer)), at_once=5)
    ids = {each for each, _ in seen}
    assert len(ids) == 2
    assert {tuple(body for each, body in seen if each == one) for one in ids} == {("1", "2", "lost"), ("1",)}
    assert (report.equal, report.differing) == (3, 1)
    assert dict(report.not_replayed) == {"a step before it in its sequence has no answer now": 1}


async def test_after_a_gap_no_step_is_sent_and_those_before_it_are(tmp_path: Path, serve: Serve) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.text())
        return web.Response()

    records = [step(1, "s", body="1"), step(2, "s", body="2", body_cut=True), step(3, "s", body="3")]
    numbered = [step(1, "t", body="t1"), step(3, "t", body="t3")]
    for each in numbered:
        each["time"] = each["time"].replace("T00:", "T01:")
    report = await replayed(tmp_path, [*records, *numbered], address(await serve(answer)), at_once=9)
    assert (sorted(seen), report.equal) == (["1", "t1"], 2)
    assert dict(report.not_replayed) == {
        "its body was cut (maxBodyBytes)": 1,
        "a step before it in its sequence was not replayed": 1,
        "a step before it in its sequence is not in the journal": 1,
    }


async def test_a_damaged_line_ends_the_sequences_that_had_begun(tmp_path: Path, serve: Serve) -> None:
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.text())
        return web.Response()

    unnumbered = [{**each, "step": None} for each in (step(1, "s", body="s1"), step(2, "s", body="s2"))]
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(unnumbered[0])}\n")
    (tmp_path / "b.jsonl").write_text("not a record\n")
    (tmp_path / "i.jsonl").write_text(f"{json.dumps(unnumbered[1])}\n")
    later = [step(1, "t", body="t1"), step(2, "t", body="t2")]
    report = await replayed(tmp_path, later, address(await serve(answer)))
    assert sorted(seen) == ["s1", "t1", "t2"]
    assert (report.damaged, dict(report.not_replayed)) == (
        1,
        {"a damaged line before it may be a step of its sequence": 1},
    )


async def test_a_difference_that_follows_another_one_of_its_sequence_is_told_apart(
    tmp_path: Path, serve: Serve
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="other")

    records = [step(1, "s"), step(2, "s"), recorded(3), recorded(4)]
    report = await replayed(tmp_path, records, address(await serve(answer)))
    first, *rest = report.as_text().splitlines()
    assert first == "replayed: 4, equal: 0, different: 4, 1 of them after another one of their sequence"
    assert [each.split()[2] for each in rest if " request " in each] == ["r1", "r3", "r4"]
    assert [each["follows"] for each in report.as_json()["differences"]] == [False, True, False, False]


@pytest.mark.parametrize("speed", [None, 1000.0])
async def test_a_server_that_goes_away_ends_the_replay(
    speed: float | None, tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FIRST_PAUSE", 0.001)

    async def answer(request: web.Request) -> web.Response:
        assert server.runner is not None
        for site in tuple(server.runner.sites):
            await site.stop()
        gone = web.Response()
        gone.force_close()
        return gone

    server = await serve(answer)
    with pytest.raises(ServerGone, match="Cannot connect"):
        await replayed(tmp_path, [recorded(number) for number in range(3)], address(server), speed=speed)


async def test_sequences_that_a_restarted_server_may_have_forgotten_are_not_continued(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FIRST_PAUSE", 0.001)
    seen, send, away = [], HttpSender.send, [True]

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.text())
        return web.Response()

    async def send_unless_away(self: HttpSender, request: ReplayRequest, sequence_id: str | None) -> SentAnswer:
        if request.body == b"2" and away and away.pop():
            raise NotConnected("away")
        return await send(self, request, sequence_id)

    monkeypatch.setattr(HttpSender, "send", send_unless_away)
    one = [step(number, "s", body=f"{number}") for number in (1, 2, 3)]
    others = [step(1, "t", body="t1"), step(2, "t", body="t2")]
    records = [*one, *others]
    for number, each in enumerate(records):
        each["time"] = f"2026-01-01T00:00:{number:02}+00:00"
    report = await replayed(tmp_path, records, address(await serve(answer)))
    assert seen == ["1", "t1", "t2"]
    assert dict(report.not_replayed) == {"the server was away after a step before it in its sequence": 2}


@pytest.fixture
async def calls() -> AsyncIterator[tuple[str, list[ModelInferRequest]]]:
    """A server with the Open Inference service: its address, and the requests that it got."""
    got: list[ModelInferRequest] = []

    async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for each in requests:
            got.append(request := ModelInferRequest.FromString(each))
            if request.id == "bad":
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no such input")
            response = ModelInferResponse(model_name="m", model_version=request.model_version, id="new")
            response.outputs.add(name=request.parameters["sequence_id"].string_param, datatype="INT8", shape=[1])
            response.raw_output_contents.append(bytes([len(got)]))
            yield response.SerializeToString()

    methods = {"ModelInfer": grpc.stream_stream_rpc_method_handler(answer)}
    server = aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"grpc://127.0.0.1:{port}", got
    await server.stop(None)


def call(number: int, id_: str = "", answered: int = 0, **changes: Any) -> Any:
    request = ModelInferRequest(model_name="m", id=id_)
    request.parameters["sequence_id"].string_param = "s"
    response = ModelInferResponse(model_name="m", model_version="1.0", id="old")
    response.outputs.add(name="s", datatype="INT8", shape=[1]).contents.int_contents.append(answered or number)
    bodies = {"body": request, "answer": response}
    told = {name: base64.b64encode(each.SerializeToString()).decode() for name, each in bodies.items()}
    forms = {"body_form": "base64", "answer_form": "base64", "protocol": "open_inference_grpc", "via": "grpc"}
    return step(number, "s", **told, **forms, part_bytes=[9], **changes)


async def test_calls_over_grpc(tmp_path: Path, serve: Serve, calls: tuple[str, list[ModelInferRequest]]) -> None:
    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=404)

    failed = {"failed": True, "error": "no such input"}
    records = [
        call(1),
        call(2),
        call(3, "bad", status=400, **failed),
        call(4, "bad", status=503, **failed),
        call(5, answered=9),
    ]
    url, got = calls
    report = await replayed(tmp_path, records, address(await serve(nothing)), grpc=url)
    assert {each.model_version for each in got} == {"2.0"}
    assert len({each.parameters["sequence_id"].string_param for each in got}) == 1
    assert [each.what for each in report.differences] == [
        ["status INTERNAL became INVALID_ARGUMENT: no such input"],
        ["outputs[0].data[0]: 9 became 5"],
    ]
    assert report.equal == 3


async def test_a_grpc_port_that_nobody_listens_at_ends_the_replay(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_FIRST_PAUSE", 0.001)

    async def nothing(request: web.Request) -> web.Response:
        return web.Response()

    with pytest.raises(ServerGone, match="failed to connect"):
        await replayed(tmp_path, [call(1)], address(await serve(nothing)), grpc="grpc://127.0.0.1:1")


async def test_an_episode_has_a_socket_until_its_last_step(tmp_path: Path, serve: Serve) -> None:
    opened, closed = [], []

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(msgpack.packb({}))
        opened.append(request.path)
        total = 0
        async for message in socket:
            assert message.type is WSMsgType.BINARY
            total += msgpack.unpackb(message.data)["n"]
            if total < 100:
                await socket.send_bytes(msgpack.packb({"sum": total, "server_timing": {"infer_ms": 1}}))
            else:
                await socket.send_str("too much")
        closed.append(len(opened))
        return socket

    def observation(number: int, episode: str, n: int, **told: Any) -> Any:
        answer = base64.b64encode(msgpack.packb({"sum": told.pop("sum", 0)})).decode()
        body = base64.b64encode(msgpack.packb({"n": n})).decode()
        forms = {"body_form": "base64", "answer_form": "base64", "protocol": "openpi", "via": "websocket"}
        return step(number, episode, body=body, answer=answer, **forms, **told)

    records = [
        *(observation(1, "a", 1, sum=1), observation(2, "a", 2, sum=3)),
        *(observation(1, "b", 1, sum=1), observation(2, "b", 1, sum=3)),
        *(observation(1, "c", 200, status=500, failed=True), observation(2, "c", 200, sum=1)),
    ]
    for number, each in enumerate(records):
        each["time"] = f"2026-01-01T00:00:{number:02}+00:00"
    report = await replayed(tmp_path, records, address(await serve(answer)))
    assert opened == ["/openpi/m/2.0"] * 3
    assert closed == [1, 2, 3], "a socket is closed before the next episode begins"
    assert [each.what for each in report.differences] == [
        ["sum: 3 became 2"],
        ["status answered became failed: too much"],
    ]
    assert report.equal == 4
