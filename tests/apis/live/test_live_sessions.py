"""Live sessions against a fake `Serving`, with the client of `websockets`."""

import asyncio
import base64
import json

import pytest
from tests.apis.live.conftest import BINARY, HEADER, JSON, Open, Session, open_socket, refused, stateful
from tests.endpoints.conftest import Start
from tests.endpoints.fake_serving import FakeModel, FakeServing
from tests.endpoints.socket_client import LIMIT, until
from websockets.exceptions import ConnectionClosed

from torchserve_py.apis.live import socket_session
from torchserve_py.base.causes import Cause


async def test_messages_are_steps_of_one_sequence(live: Open) -> None:
    session = await live(stateful(), additional_headers={"Content-Type": "text/plain", "X-Mine": "yes"})
    assert session.socket.subprotocol == JSON
    assert session.greeting["last"] == 0
    assert session.greeting["window"] == 4
    for number, text in ((1, "grüße"), (2, "zwei")):
        await session.send(body=text)
        answer = await session.receive()
        assert answer == {"step": number, "more": False, "status": 200, "headers": {}, "body": text}
    first, second = session.model.calls
    assert first.sequence_id == second.sequence_id == session.greeting["sequence"]
    assert (first.starts_sequence, second.starts_sequence) == (True, False)
    assert (first.header_dict["ts_request_step"], second.header_dict["ts_request_step"]) == ("1", "2")
    token = first.header_dict["ts_request_sequence_token"]
    assert token == second.header_dict["ts_request_sequence_token"]
    assert token not in (session.greeting["sequence"], session.greeting["resume"]), "neither tells the other"
    assert first.header_dict["X-Mine"] == "yes"
    assert first.header_dict["ts_request_sequence_id"] == session.greeting["sequence"]
    assert first.content_type == "text/plain"
    assert not any(name.lower().startswith("sec-websocket") for name in first.header_dict)


async def test_a_client_that_names_no_subprotocol_speaks_json(live: Open) -> None:
    session = await live(stateful(), None)
    assert session.socket.subprotocol is None
    await session.send(step=7, body={"base64": base64.b64encode(b"\xff\x00").decode()}, content_type="application/x")
    assert (await session.receive())["body"] == {"base64": base64.b64encode(b"\xff\x00").decode()}
    assert session.model.calls[0].content_type == "application/x"
    assert session.model.calls[0].header_dict["ts_request_step"] == "7"


async def test_binary_frames(live: Open) -> None:
    model = stateful()
    session = await live(model, BINARY, "?content_type=application/octet-stream")
    await session.socket.send(HEADER.pack(1, 0, 0, 0) + b"\xffone")
    assert await session.socket.recv() == HEADER.pack(1, 0, 200, 1) + b"\xffone"
    assert model.calls[0].content_type == "application/octet-stream"
    model.behave = lambda call: call.part(b"x", headers=[["a", "b"], ["a", "c"]], more=True)
    await session.socket.send(HEADER.pack(1, 1, 0, 0) + b"two")
    assert await session.socket.recv() == HEADER.pack(3, 1, 200, 2) + b'{"a":"b, c"}'
    assert await session.socket.recv() == HEADER.pack(1, 1, 200, 2) + b"x"
    model.calls[1].part(error="no", status=503)
    failed = await session.socket.recv()
    assert isinstance(failed, bytes)
    assert HEADER.unpack_from(failed) == (4, 0, 503, 2)
    assert json.loads(failed[8:])["cause"] == "handler_error"


async def test_a_session_says_what_becomes_of_late_steps_and_each_step_when_it_is_due(live: Open) -> None:
    session = await live(stateful(), path="?content_type=text/plain&late=drop")
    await session.send(body="a", deadline_ms=40)
    await session.send(body="b")
    assert [(await session.receive())["step"] for _ in range(2)] == [1, 2]
    timed, patient = (each.call.timing for each in session.model.calls)
    assert timed is not None
    assert (timed.within, timed.drops, patient) == (0.04, True, None)
    session = await live(stateful(), path="?content_type=text/plain&period_ms=20&late=drop")
    await session.send(body="a")
    await session.send(body="b", deadline_ms=500)
    assert [(await session.receive())["step"] for _ in range(2)] == [1, 2]
    timings = [each.call.timing for each in session.model.calls]
    assert [(each.within, each.period) for each in timings if each is not None] == [(0.02, 0.02), (0.5, 0.02)]


async def test_parts_of_streams_errors_and_answers_come_in_the_order_of_steps(live: Open) -> None:
    model = stateful()
    model.behave = lambda call: None
    session = await live(model)
    for text in "abc":
        await session.send(body=text)
    await until(lambda: len(model.calls) == 3, "three steps are on their way")
    model.calls[2].part(b"third")
    model.calls[1].fail(Cause.worker_died)
    model.calls[0].part(b"one", more=True, headers=[["Content-Type", "text/plain"]])
    model.calls[0].part(b"two")
    got = [await session.receive() for _ in range(4)]
    assert [(each["step"], each.get("more"), each.get("body")) for each in got] == [
        (1, True, "one"),
        (1, False, "two"),
        (2, None, None),
        (3, False, "third"),
    ]
    assert got[0]["headers"] == {"Content-Type": "text/plain"}
    message = "The worker that ran the request has ended; the log of the model may say more."
    assert got[2] == {"step": 2, "error": {"status": 500, "cause": "worker_died", "message": message}}


async def test_only_so_many_steps_are_on_their_way(live: Open) -> None:
    model = stateful(window=3)
    model.behave = lambda call: None
    session = await live(model)
    for number in range(1, 41):
        await session.send(body=str(number))
    await until(lambda: len(model.calls) == 3, "three steps are on their way")
    await asyncio.sleep(0.1)
    assert len(model.calls) == 3
    for number in range(1, 41):
        await until(lambda number=number: len(model.calls) >= number, "the next step has come")
        model.calls[number - 1].part(str(number).encode())
        assert len(model.calls) - number <= 3
    assert [(await session.receive())["step"] for _ in range(40)] == list(range(1, 41))


async def test_a_client_that_does_not_read_is_not_read_from(live: Open) -> None:
    """10,000 steps whose answers nobody reads: neither steps nor answers pile up in the server."""
    model = stateful(window=4)
    model.behave = lambda call: call.part(b"x" * 20_000)
    session = await live(model, max_queue=1)

    async def flood() -> None:
        for _ in range(10_000):
            await session.send(body="y" * 1000)

    sending = asyncio.create_task(flood())
    before = -1
    while before != len(model.calls):
        before = len(model.calls)
        await asyncio.sleep(0.3)
    assert len(model.calls) < 2000
    assert not sending.done()
    for number in range(1, len(model.calls) + 1):
        assert (await session.receive())["step"] == number
    sending.cancel()


async def test_the_last_step_ends_the_session(live: Open) -> None:
    session = await live(stateful())
    await session.send(body="a")
    await session.send(body="b", end=True)
    assert await session.closed() == (1000, "The sequence has ended.")
    assert [call.ends_sequence for call in session.model.calls] == [False, True]


async def test_the_handler_may_end_the_sequence(live: Open) -> None:
    model = stateful()
    session = await live(model)
    ended = f"other; {session.greeting['sequence']}"
    model.behave = lambda call: call.part(b"bye", headers=[["ts_request_sequence_end", ended]])
    await session.send(body="a")
    assert (await session.receive())["body"] == "bye"
    assert (await session.closed())[0] == 1000


@pytest.mark.parametrize(
    ("message", "code", "reason"),
    [
        ("no JSON", 1007, "No message of sequences.json.v1: JSON is malformed"),
        ("[]", 1007, "Expected `object`, got `array`"),
        ('{"body": 5}', 1007, "$.body"),
        ('{"boby": "a"}', 1007, "boby"),
        ('{"step": -1}', 1007, "$.step"),
        ('{"step": 4294967296}', 1007, "$.step"),
        ('{"body": {"base64": "?"}}', 1007, "base64"),
        ('{"content_type": "t\u00e4xt/plain"}', 1007, "$.content_type"),
        ('{"content_type": "text/plain\\n"}', 1007, "$.content_type"),
        (b"binary", 1003, "text messages"),
        ("x" * 70_000, 1009, ""),
    ],
)
async def test_an_unusable_message_closes_the_session(message: str | bytes, code: int, reason: str, live: Open) -> None:
    session = await live(stateful(), settings={"max_request_size": 65536})
    await session.send(body="a")
    await session.receive()
    await session.socket.send(message)
    closed = await session.closed()
    assert closed[0] == code
    assert reason in closed[1]
    await until(lambda: session.model.released, "the sequence is released")


@pytest.mark.parametrize("message", [b"short", HEADER.pack(9, 0, 0, 0), HEADER.pack(1, 2, 0, 0)])
async def test_an_unusable_frame_closes_the_session(message: bytes, live: Open) -> None:
    session = await live(stateful(), BINARY)
    await session.socket.send(message)
    assert (await session.closed())[0] == 1007


async def test_text_in_the_binary_form_closes_the_session(live: Open) -> None:
    session = await live(stateful(), BINARY)
    await session.socket.send("text")
    assert await session.closed() == (1003, "The messages of sequences.binary.v1 are binary messages.")


async def test_a_session_closes_at_once_though_its_client_has_sent_more(
    live: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_session, "_CLOSE_LIMIT", 10 * LIMIT)
    model = stateful()
    model.behave = lambda call: None
    session = await live(model, settings={"max_request_size": 65536})

    async def send_all() -> None:
        for _ in range(400):
            await session.send(body="a" * 30_000)

    sending = asyncio.create_task(send_all())
    await until(lambda: len(model.calls) == 3, "steps of the size of one message are on their way")
    model.calls[0].part(b"", headers=[["ts_request_sequence_end", session.greeting["sequence"]]])
    assert (await session.closed())[0] == 1000
    async with asyncio.timeout(LIMIT):
        await session.socket.wait_closed()
        with pytest.raises(ConnectionClosed):
            await sending


async def test_a_step_that_is_sent_again_has_its_number(live: Open) -> None:
    """The worker knows whether it was applied, and answers or runs it."""
    session = await live(stateful())
    for step, body in ((1, "a"), (2, "b"), (1, "a"), (0, "c")):
        await session.send(step=step, body=body)
        assert (await session.receive())["body"] == body
    assert [call.header_dict["ts_request_step"] for call in session.model.calls] == ["1", "2", "1", "3"]


async def test_steps_behind_a_first_one_that_has_failed_are_gaps_and_the_session_continues(live: Open) -> None:
    model = stateful()
    model.behave = lambda call: None
    session = await live(model)
    for body in "abc":
        await session.send(body=body)
    await until(lambda: len(model.calls) == 3, "three steps are on their way")
    model.calls[0].part(error="no", status=503)
    for call in model.calls[1:]:
        call.fail(Cause.sequence_unknown)  # nothing has begun that they could continue
    told = [(await session.receive())["error"]["cause"] for _ in range(3)]
    assert told == ["handler_error", "step_gap", "step_gap"]
    model.behave = lambda call: call.part(b"again")
    await session.send(body="a")
    assert (await session.receive())["step"] == 1


async def test_the_number_of_a_failed_step_is_used_again(live: Open) -> None:
    model = stateful()
    session = await live(model)
    await session.send(body="a")
    await session.receive()
    model.behave = lambda call: None
    for body in "bc":
        await session.send(body=body)
    await until(lambda: len(model.calls) == 3, "two steps are on their way")
    model.calls[1].part(error="no", status=503)
    model.calls[2].fail(Cause.step_gap)
    assert [(await session.receive())["error"]["cause"] for _ in range(2)] == ["handler_error", "step_gap"]
    model.behave = lambda call: call.part(b"again")
    await session.send(body="b")
    assert (await session.receive())["step"] == 2


@pytest.mark.parametrize("form", [JSON, BINARY])
async def test_the_numbers_of_steps_have_an_end(form: str, live: Open) -> None:
    session = await live(stateful(), form)
    last = 2**32 - 1
    for number in (last, 0):
        step = json.dumps({"step": number}) if form == JSON else HEADER.pack(1, 0, 0, number)
        await session.socket.send(step)
    assert await session.closed() == (1008, f"Step {last} was the last one; a session has no more numbers.")
    assert len(session.model.calls) == 1


async def test_a_step_of_a_sequence_that_has_ended_is_told_so(live: Open) -> None:
    model = stateful()
    model.behave = lambda call: call.fail(Cause.sequence_ended)
    session = await live(model)
    await session.send(body="a")
    assert (await session.receive())["error"]["cause"] == "sequence_ended"
    assert await session.closed() == (1000, "The sequence has ended.")


@pytest.mark.parametrize("cause", [Cause.sequence_lost, Cause.sequence_expired])
async def test_a_sequence_that_is_over_closes_the_session(cause: Cause, live: Open) -> None:
    model = stateful()
    model.behave = lambda call: call.fail(cause)
    session = await live(model)
    await session.send(body="a")
    answer = await session.receive()
    assert (answer["error"]["status"], answer["error"]["cause"]) == (410, cause)
    assert await session.closed() == (4410, cause)


async def test_an_idle_session_is_closed(live: Open) -> None:
    session = await live(stateful(sequence_max_idle_ms=200))
    assert await session.closed() == (4410, "sequence_expired: no step for 0.2 seconds")


@pytest.mark.parametrize("fails", [False, True])
async def test_what_follows_a_last_step_waits_for_what_becomes_of_it(live: Open, fails: bool) -> None:
    """It would begin the sequence anew. If the last step fails, the sequence goes on."""
    model = stateful()
    model.behave = lambda call: None
    session = await live(model)
    await session.send(body="a", end=True)
    await session.send(body="b")
    await until(lambda: model.calls, "the first has come")
    await asyncio.sleep(0.1)
    assert len(model.calls) == 1
    if not fails:
        model.calls[0].part(b"bye")
        assert await session.closed() == (1000, "The sequence has ended.")
        assert len(model.calls) == 1
        return
    model.calls[0].part(error="no", status=503)
    assert (await session.receive())["error"]["cause"] == "handler_error"
    await until(lambda: len(model.calls) == 2, "the second comes")
    model.calls[1].part(b"on")
    assert (await session.receive())["body"] == "on"


async def test_a_closing_server_says_so(live: Open, start: Start) -> None:
    model = stateful()
    model.behave = lambda call: None
    endpoints = await start(FakeServing(registered=[model]))
    session = Session(await open_socket(endpoints, JSON), model)
    await session.socket.recv()
    await session.send(body="a")
    await asyncio.wait_for(model.submitted.wait(), LIMIT)
    closing = asyncio.create_task(endpoints.endpoints.close())
    await asyncio.sleep(0)
    model.calls[0].part(b"the last answer")
    assert (await session.receive())["body"] == "the last answer"
    assert await session.closed() == (1012, "The server is shutting down.")
    await closing


async def test_sessions_of_stored_sequences_move_when_the_server_drains_and_others_stay(start: Start) -> None:
    stored, volatile = stateful(is_durable=True), stateful()
    volatile.name = "volatile"
    endpoints = await start(FakeServing(registered=[stored, volatile]))
    moves = Session(await open_socket(endpoints, JSON), stored)
    stays = Session(await open_socket(endpoints, JSON, name="volatile"), volatile)
    await stays.socket.recv()
    endpoints.endpoints.context.start_draining()
    assert await moves.closed() == (1012, "The server is shutting down.")
    await stays.send(body="a")
    assert (await stays.receive())["step"] == 1
    status, body = await refused(endpoints)
    assert (status, body["type"]) == (503, "ServiceUnavailableException")


async def test_handshakes_that_are_refused(start: Start) -> None:
    stateless = FakeModel("tally")
    endpoints = await start(FakeServing(registered=[stateless]))
    status, body = await refused(endpoints)
    assert (status, "keeps no sequences" in body["message"]) == (400, True)
    status, body = await refused(endpoints, path="/9.9")
    assert status == 404
    stateless.is_stateful = True
    status, body = await refused(endpoints, form="other.v1")
    assert (status, JSON in body["message"]) == (400, True)
    for origin in ("http://evil.example", "http://[", "null"):
        status, body = await refused(
            endpoints, form="sequences.binary.v1", origin=origin
        )  # of JSON, a page is told later
        assert (status, origin in body["message"]) == (403, True)
    status, body = await refused(endpoints, path="?content_type=text/plain%0d%0aX-Mine:%201")
    assert (status, "Content type" in body["message"]) == (400, True)
    answer = await endpoints.request("GET", "/sequences/tally")
    assert (answer.status, "WebSocket" in answer.json()["message"]) == (400, True)
    assert (await endpoints.request("POST", "/sequences/tally")).status == 405


async def test_pages_of_the_server_and_of_allowed_origins_may_open_sessions(live: Open) -> None:
    allowed = {
        "cors_allowed_origin": "http://good.example",
        "cors_allowed_methods": "GET",
        "cors_allowed_headers": "X",
    }
    session = await live(stateful(), settings=allowed, origin="http://good.example")
    await session.send(body="a")
    assert (await session.receive())["step"] == 1


async def test_a_key_is_needed_before_the_upgrade(start: Start) -> None:
    endpoints = await start(FakeServing(registered=[stateful()]), disable_token_authorization=False)
    key = json.loads(endpoints.key_file.read_text())["inference"]["key"]
    assert (await refused(endpoints))[0] == 400
    assert (await refused(endpoints, additional_headers={"Authorization": "Bearer wrong"}))[0] == 400
    status, body = await refused(endpoints, subprotocols=[JSON, "bearer.wrong"])
    assert (status, body["type"]) == (400, "InvalidKeyException")
    for more in (
        {"additional_headers": {"Authorization": f"Bearer {key}"}},
        {"subprotocols": [JSON, f"bearer.{key}"]},
    ):
        socket = await open_socket(endpoints, JSON, **more)
        assert socket.subprotocol == JSON
        await socket.close()
