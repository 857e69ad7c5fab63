"""Resuming live sessions against a fake `Serving`, which answers as a store would."""

import asyncio
from typing import Any

import pytest
from tests.apis.live.conftest import Open, stateful
from tests.endpoints.fake_serving import Submitted
from tests.endpoints.socket_client import until

from torchserve_py.base.causes import Cause


async def test_stored_steps_go_on_when_their_client_leaves(live: Open) -> None:
    model = stateful(is_durable=True)
    model.behave = lambda call: None
    session = await live(model)
    await session.send(body="a")
    await session.send(body="b")
    await until(lambda: len(model.calls) == 2, "both are on their way")
    await session.socket.close()
    model.calls[0].part(b"one", more=True)
    model.calls[0].part(b"two")
    await asyncio.sleep(0.1)
    assert not model.released
    model.calls[1].fail(Cause.worker_died)
    await until(lambda: model.released, "the sequence is released once its steps are over")
    assert not model.cancelled.is_set()


async def test_a_session_whose_store_does_not_answer_is_to_be_resumed_later(live: Open) -> None:
    model = stateful(is_durable=True)
    model.behave = lambda call: call.fail(Cause.sequence_moved)
    session = await live(model)
    await session.send(resume=session.greeting["resume"], after=2, unanswered=[3, 4])
    answer = await session.receive()
    assert (answer["step"], answer["error"]["cause"]) == (2, "sequence_moved")
    assert await session.closed() == (1013, "sequence_moved")
    assert [call.only_ask for call in model.calls] == [True]


async def test_the_empty_body_of_a_question_is_of_no_type(live: Open) -> None:
    """A worker that decoded it as the session's type would log an error, or refuse it."""
    model = stateful(is_durable=True)
    session = await live(model, path="?content_type=application/json")
    await session.send(resume="a token", after=1, unanswered=[])
    assert (await session.receive())["last"] == 1
    await session.send(body="5")
    await session.receive()
    assert [(call.body, call.content_type) for call in model.calls] == [(b"", None), (b"5", "application/json")]


async def test_a_resumed_client_gets_what_is_kept_of_the_steps_that_may_lack_an_answer(live: Open) -> None:
    """Step 40 is kept, 44 was too large to be kept, 46 is kept and ended the sequence; the others were not applied."""
    model = stateful(is_durable=True)
    session = await live(model)

    def kept(call: Submitted) -> None:
        number = call.header_dict["ts_request_step"]
        if number == "44":
            call.part(error="too large to be kept", status=500)
        elif number == "46":
            call.part(b"46", headers=[["ts_request_sequence_end", call.sequence_id or ""]])
        elif number == "40":
            call.part(number.encode())
        else:
            call.fail(Cause.not_applied)

    model.behave = kept
    await session.send(resume="a token", after=40, unanswered=[42, 44, 46, 47])
    large, last, told = [await session.receive() for _ in range(3)]
    assert (large["step"], large["error"]["cause"]) == (44, "handler_error")
    assert (last["step"], last["body"]) == (46, "46")
    assert (told["last"], told["resume"]) == (46, "a token")
    assert await session.closed() == (1000, "The sequence has ended.")
    assert [call.header_dict["ts_request_step"] for call in model.calls] == ["40", "42", "44", "46", "47"]
    assert len({call.sequence_id for call in model.calls}) == 1


@pytest.mark.parametrize("unanswered", [[], [4]])
async def test_a_client_that_knows_no_answer_is_told_the_last_step(live: Open, unanswered: list[int]) -> None:
    """Three steps were applied; the client has forgotten all of them."""
    model = stateful(is_durable=True)
    session = await live(model)

    def kept(call: Submitted) -> None:
        if call.header_dict["ts_request_step"] == "1":
            call.part(b"one", last=3)
        else:
            call.fail(Cause.not_applied)

    model.behave = kept
    await session.send(resume="a token", after=0, unanswered=unanswered)
    assert (await session.receive())["last"] == 3
    model.behave = lambda call: call.part(b"four")
    await session.send(body="d")
    assert (await session.receive())["step"] == 4


async def test_of_connections_that_resume_at_once_one_goes_on_and_the_others_are_told(live: Open) -> None:
    model = stateful(is_durable=True)
    first = await live(model)
    await first.send(body="a")
    await first.receive()
    sessions = [first, *[await live(model) for _ in range(4)]]
    await asyncio.gather(*(each.send(resume=first.greeting["resume"], after=1) for each in sessions[1:]))
    closing = {asyncio.create_task(each.closed()): each for each in sessions}
    await until(lambda: sum(task.done() for task in closing) == 4, "four are closed")
    assert {task.result() for task in closing if task.done()} == {(4409, "Another connection has resumed the session.")}
    ((reading, last),) = ((task, each) for task, each in closing.items() if not task.done())
    reading.cancel()
    await asyncio.wait([reading])
    await last.send(body="b")
    assert (await last.receive())["step"] == 2


async def test_a_replaced_session_that_resumes_another_does_not_take_the_sequence_from_its_owner(live: Open) -> None:
    model = stateful(is_durable=True)
    first, second, third = [await live(model) for _ in range(3)]
    await first.send(resume="a token")
    assert (await first.receive())["resume"] == "a token"
    await asyncio.gather(second.send(resume="a token"), first.send(resume="another token"))
    assert (await second.receive())["resume"] == "a token"
    await third.send(resume="a token")
    assert (await third.receive())["resume"] == "a token"
    assert (await second.closed())[0] == 4409


async def test_more_steps_than_can_be_unanswered_are_refused(live: Open) -> None:
    model = stateful(window=4, is_durable=True)
    session = await live(model)
    await session.send(resume="a token", unanswered=[1, 2, 3, 4, 5])
    assert await session.closed() == (1008, "unanswered: up to 4 steps.")
    assert not model.calls


async def test_a_step_may_be_unanswered_though_a_later_one_was_answered(live: Open) -> None:
    model = stateful(is_durable=True)
    session = await live(model)
    model.behave = lambda call: call.part(call.header_dict["ts_request_step"].encode())
    await session.send(resume="a token", after=3, unanswered=[4, 1])
    first, second, told = [await session.receive() for _ in range(3)]
    assert [(each["step"], each["body"]) for each in (first, second)] == [(1, "1"), (4, "4")]
    assert told["last"] == 4


@pytest.mark.parametrize("answer", [{"body": b"7"}, {"error": "too large to be kept", "status": 500}])
async def test_a_client_that_has_the_last_answer_is_told_that_the_sequence_has_ended(
    live: Open, answer: dict[str, Any]
) -> None:
    model = stateful(is_durable=True)
    session = await live(model)
    model.behave = lambda call: call.part(headers=[["ts_request_sequence_end", call.sequence_id or ""]], **answer)
    await session.send(resume="a token", after=2)
    assert await session.closed() == (1000, "The sequence has ended.")


async def test_the_answer_that_a_replaced_session_waited_for_is_read_and_dropped(live: Open) -> None:
    model = stateful(is_durable=True)
    model.behave = lambda call: None
    first = await live(model)
    await first.send(resume="a token", after=0, unanswered=[1])
    await until(lambda: len(model.calls) == 1, "the first session asks")
    second = await live(model)
    await second.send(resume="a token", after=0, unanswered=[1])
    assert (await first.closed())[0] == 4409
    parts = model.calls[0].call
    model.calls[0].part(b"a part", more=True)
    await until(lambda: not parts.buffered_bytes, "nobody waits for the answer, so it is dropped")


async def test_a_client_that_waits_for_what_it_has_missed_is_not_idle(live: Open) -> None:
    model = stateful(is_durable=True, sequence_max_idle_ms=200)
    model.behave = lambda call: None
    session = await live(model)
    await session.send(resume="a token", after=0, unanswered=[1])
    await until(lambda: len(model.calls) == 1, "the missed answer is asked for")
    await asyncio.sleep(0.6)
    model.calls[0].part(b"late")
    assert (await session.receive()).get("body") == "late"
    assert (await session.receive())["last"] == 1
    assert await session.closed() == (4410, "sequence_expired: no step for 0.2 seconds")


async def test_a_sequence_is_released_though_its_client_left_while_it_was_resumed(live: Open) -> None:
    model = stateful(is_durable=True)
    model.behave = lambda call: None
    session = await live(model)
    await session.send(resume="a token", after=1)
    await until(lambda: len(model.calls) == 1, "the answer that the client has is asked for")
    await session.socket.close()
    model.calls[0].part(b"one")
    await until(lambda: model.released, "the sequence is released")
    assert model.released == [model.calls[0].sequence_id]
