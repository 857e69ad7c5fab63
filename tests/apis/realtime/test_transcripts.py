"""Audio that is appended and committed, and what comes back."""

import asyncio
from typing import Any

import pytest
from tests.apis.realtime.conftest import TRANSCRIPTION, Open, kind_of, transcriber
from tests.endpoints.fake_serving import Submitted
from tests.endpoints.socket_client import until

from torchserve_py.base.causes import Cause

COMPLETED, DELTA, FAILED = (f"{TRANSCRIPTION}.{each}" for each in ("completed", "delta", "failed"))
DURATION = {"type": "duration", "seconds": 0.0}


async def test_pieces_are_steps_and_answers_are_the_transcript(listen: Open) -> None:
    model = transcriber()
    client = await listen(model)
    for text in (b"once", b" upon "):
        await client.append(text)
    await client.commit()
    first = await client.events(COMPLETED)
    item = first[-1]["item_id"]
    assert [(event["type"], event.get("delta")) for event in first[:2]] == [(DELTA, "once"), (DELTA, " upon ")]
    assert first[2] == {**first[2], "type": "input_audio_buffer.committed", "item_id": item, "previous_item_id": None}
    assert [event["type"] for event in first[3:]] == ["conversation.item.added", "conversation.item.done", COMPLETED]
    assert (first[-1]["transcript"], first[-1]["usage"], first[-1]["content_index"]) == ("once upon ", DURATION, 0)
    await client.append(b"a time")
    await client.commit()
    second = await client.events(COMPLETED)
    assert (second[1]["previous_item_id"], second[1]["item_id"]) == (item, second[-1]["item_id"])
    assert (second[-1]["item_id"] == item, second[-1]["transcript"]) == (False, "a time")
    ids = [event["event_id"] for event in first + second]
    assert len(set(ids)) == len(ids)
    told = [(kind_of(call), call.body, call.starts_sequence) for call in model.calls]
    assert told == [
        ("append", b"once", True),
        ("append", b" upon ", False),
        ("commit", b"", False),
        ("append", b"a time", False),
        ("commit", b"", False),
    ]
    assert len({call.sequence_id for call in model.calls}) == 1
    headers = model.calls[0].header_dict
    assert {name: headers[name] for name in headers if name.startswith("realtime_")} == {
        "realtime_event": "append",
        "realtime_encoding": "pcm16",
        "realtime_rate": "24000",
        "realtime_transcription": "{}",
    }


async def test_what_the_handler_says_to_a_commit_belongs_to_the_transcript(listen: Open) -> None:
    def conclude(call: Submitted) -> None:
        if kind_of(call) == "append":
            call.part(b"wreck ")
        else:
            call.part(b"a nice ", more=True)
            call.part(b"beach")

    model = transcriber()
    model.behave = conclude
    client = await listen(model)
    await client.append(b"12")
    await client.commit()
    events = await client.events(COMPLETED)
    assert [event["delta"] for event in events if event["type"] == DELTA] == ["wreck ", "a nice ", "beach"]
    assert events[-1]["transcript"] == "wreck a nice beach"


async def test_a_handler_may_replace_what_it_has_said(listen: Open) -> None:
    def revise(call: Submitted) -> None:
        if kind_of(call) == "append":
            call.part(b"wreck a nice beach")
        else:
            call.part(b"recognize speech", headers=[("Realtime_Whole_Transcript", "true")])

    model = transcriber()
    model.behave = revise
    client = await listen(model)
    await client.append(b"12")
    await client.commit()
    events = await client.events(COMPLETED)
    assert [event["delta"] for event in events if event["type"] == DELTA] == ["wreck a nice beach"]
    assert events[-1]["transcript"] == "recognize speech"


async def test_a_sample_may_be_cut_in_two(listen: Open) -> None:
    model = transcriber()
    client = await listen(model)
    for piece in (b"a", b"", b"bc", b"d"):
        await client.append(piece)
    await client.commit()
    assert (await client.events(COMPLETED))[-1]["transcript"] == "abcd"
    assert [call.body for call in model.calls] == [b"ab", b"cd", b""]
    await client.append(b"abc")
    await client.commit(event_id="odd")
    assert (await client.receive())["delta"] == "ab"
    error = await client.error()
    assert (error["code"], error["event_id"]) == ("invalid_audio", "odd")
    await client.append(b"d")
    await client.commit()
    assert (await client.events(COMPLETED))[-1]["transcript"] == "abcd"


async def test_clear_drops_what_was_not_committed(listen: Open) -> None:
    model = transcriber()
    client = await listen(model)
    await client.send("input_audio_buffer.clear")
    assert (await client.receive())["type"] == "input_audio_buffer.cleared"
    assert not model.calls, "there was nothing to clear"
    await client.append(b"xx")
    await client.send("input_audio_buffer.clear")
    await client.commit(event_id="empty")
    assert [event["type"] for event in [await client.receive(), await client.receive()]] == [
        DELTA,
        "input_audio_buffer.cleared",
    ]
    error = await client.error()
    assert (error["code"], error["type"], error["event_id"]) == (
        "input_audio_buffer_commit_empty",
        "invalid_request_error",
        "empty",
    )
    await client.append(b"yy")
    await client.commit()
    assert (await client.events(COMPLETED))[-1]["transcript"] == "yy"
    assert [kind_of(call) for call in model.calls] == ["append", "clear", "append", "commit"]


def failing(cause: Cause | None, kind: str) -> Any:
    """Behave so that the second piece, or the first commit, fails."""
    seen: list[str] = []

    def behave(call: Submitted) -> None:
        seen.append(kind_of(call))
        if seen.count(kind) == (2 if kind == "append" else 1) and seen[-1] == kind:
            if cause is None:
                call.part(status=500, error="Prediction failed")
            else:
                call.fail(cause)
        else:
            call.part(call.body)

    return behave


@pytest.mark.parametrize("cause", [None, Cause.worker_died, Cause.sequence_lost, Cause.queue_full])
async def test_a_piece_that_was_not_heard_fails_its_item_and_no_other(listen: Open, cause: Cause | None) -> None:
    model = transcriber()
    model.behave = failing(cause, "append")
    client = await listen(model)
    for number in range(3):
        await client.append(b"%d%d" % (number, number), event_id=f"piece {number}")
        if number == 1:
            assert (await client.receive())["delta"] == "00"
            error = await client.error()
            code = "handler_error" if cause is None else cause.value
            kind = "invalid_request_error" if cause is Cause.sequence_lost else "server_error"
            assert (error["event_id"], error["code"], error["type"]) == ("piece 1", code, kind)
    await client.commit()
    events = await client.events(FAILED)
    assert DELTA not in [event["type"] for event in events], "nothing is said of an item that has failed"
    assert events[0]["item_id"] == events[-1]["item_id"]
    assert events[-1]["error"]["code"] == code
    await client.append(b"ok")
    await client.commit()
    assert (await client.events(COMPLETED))[-1]["transcript"] == "ok"
    sequences = [call.sequence_id for call in model.calls]
    is_lost = cause in (Cause.worker_died, Cause.sequence_lost)
    assert sequences[0] == sequences[1]
    assert (sequences[1] != sequences[2]) is is_lost
    assert model.calls[2].starts_sequence is is_lost


async def test_a_commit_that_fails(listen: Open) -> None:
    model = transcriber()
    model.behave = failing(None, "commit")
    client = await listen(model)
    await client.append(b"12")
    await client.commit()
    failed = (await client.events(FAILED))[-1]
    assert failed["error"] == {
        "type": "server_error",
        "code": "handler_error",
        "message": "Prediction failed",
        "param": None,
    }


async def test_an_error_status_of_the_handler_is_no_transcript(listen: Open) -> None:
    model = transcriber()
    model.behave = lambda call: call.part(b"Send 16,000 samples per second.", status=400)
    client = await listen(model)
    await client.append(b"12", event_id="slow")
    error = await client.error()
    assert (error["type"], error["message"]) == ("invalid_request_error", "Send 16,000 samples per second.")
    await client.commit()
    assert (await client.events(FAILED))[-1]["error"]["message"] == "Send 16,000 samples per second."


async def test_a_handler_that_ends_its_sequence_gets_a_new_one(listen: Open) -> None:
    def end(call: Submitted) -> None:
        ended = [("ts_request_sequence_end", str(call.sequence_id))] if kind_of(call) == "commit" else []
        call.part(b"", headers=ended)

    model = transcriber()
    model.behave = end
    client = await listen(model)
    for _ in range(2):
        await client.append(b"12")
        await client.commit()
        await client.events(COMPLETED)
    first, _, second, _ = (call.sequence_id for call in model.calls)
    assert first != second


async def test_pieces_that_have_come_before_the_handler_ends_its_sequence_stay_with_those_after_them(
    listen: Open,
) -> None:
    model = transcriber()
    model.behave = lambda call: None
    client = await listen(model)
    await client.append(b"12")
    await client.commit()
    await client.append(b"34")
    await until(lambda: len(model.calls) == 3, "a piece follows the commit")
    sequence = str(model.calls[0].sequence_id)
    model.calls[0].part(b"")
    model.calls[1].part(b"", headers=[("ts_request_sequence_end", sequence)])
    await client.events(COMPLETED)
    await client.append(b"56")
    await until(lambda: len(model.calls) == 4, "another piece follows")
    assert {call.sequence_id for call in model.calls} == {sequence}


async def test_the_server_reads_no_further_than_the_window(listen: Open) -> None:
    model = transcriber(window=2)
    model.behave = lambda call: None
    client = await listen(model)
    for _ in range(6):
        await client.append(b"12")
    await until(lambda: len(model.calls) == 2, "two pieces are on their way")
    await asyncio.sleep(0.1)
    assert len(model.calls) == 2
    for call in list(model.calls):
        call.part(b"!")
    await until(lambda: len(model.calls) == 4, "two more are")
