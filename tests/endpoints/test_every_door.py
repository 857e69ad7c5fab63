"""What every door does for its clients: a row for each door (`every_door`), a test for each duty."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.every_door import DOORS, LIMIT, Door, OverHttp, Refused, Session
from tests.endpoints.fake_serving import FakeModel
from tests.endpoints.raw_requests import until

from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log

#: A policy answers in one piece.
DO_NOT_STREAM = ("openpi",)


def doors(*but: str) -> Any:
    """Run a test for every door except these."""
    return pytest.mark.parametrize("door", [pytest.param(door, id=door.name) for door in DOORS if door.name not in but])


def logged(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The statuses in the access log."""
    access_log.flush()
    return [record.status for record in caplog.records if record.name == access_log.LOGGER_NAME]  # type: ignore[attr-defined]


async def refusal(door: Door, model: str = "m", **more: Any) -> Any:
    """What a client is told whose request is refused, or fails."""
    with pytest.raises(Refused) as refused:
        await (await door.call(model, **more)).rest()
    return refused.value.code


async def check_leaving(door: Door, model: FakeModel, caplog: pytest.LogCaptureFixture, seen: bytes) -> None:
    """A client leaves after it has seen this of an answer: its job is cancelled, and the request logged and counted."""
    call = await door.call()
    await until(lambda: model.calls)
    if seen:
        await call.see(seen)
    assert not model.cancelled.is_set()
    await call.leave()
    async with asyncio.timeout(LIMIT):
        await model.cancelled.wait()
    await until(lambda: logged(caplog))
    assert logged(caplog) == [door.left[bool(seen)]]
    if isinstance(door, OverHttp):
        assert [status for _, _, status in door.doors.metrics.http_requests.elements()] == logged(caplog)
    if isinstance(door, Session):
        await until(lambda: model.released == [model.calls[0].sequence_id])


@doors()
async def test_leaving_before_the_answer_cancels_the_job(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", access_log.LOGGER_NAME)
    async with door.open(tmp_path, access_log=True) as model:
        model.behave = lambda call: None
        await check_leaving(door, model, caplog, b"")


@doors(*DO_NOT_STREAM)
async def test_leaving_within_the_answer_cancels_the_job(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", access_log.LOGGER_NAME)
    async with door.open(tmp_path, access_log=True) as model:
        model.behave = lambda call: call.part(door.part(b"first"), more=True)
        await check_leaving(door, model, caplog, b"first")


@doors(*DO_NOT_STREAM)
async def test_a_slow_reader_holds_the_answer_back_and_misses_nothing(door: Door, tmp_path: Path) -> None:
    text = b"x" * 1_000_000
    async with door.open(tmp_path) as model:

        def behave(call: Any) -> None:
            if len(model.calls) == 1:
                for _ in range(30):
                    call.part(door.part(text), more=True)
            call.part(door.part(b"END"))

        model.behave = behave
        call = await door.call()
        await until(lambda: model.calls)
        for _ in range(200):  # turns in which an answer that nothing holds back would be sent
            await asyncio.sleep(0)
        assert model.calls[0].call.buffered_bytes > 0
        assert (await call.rest()).count(text) == 30


@doors()
@pytest.mark.parametrize(
    ("what", "cause"),
    [("failed", Cause.worker_died), ("overloaded", Cause.queue_full), ("expired", Cause.client_timeout)],
)
async def test_a_request_that_is_not_answered_says_why(door: Door, what: str, cause: Cause, tmp_path: Path) -> None:
    async with door.open(tmp_path) as model:
        model.behave = lambda call: call.fail(cause)
        assert await refusal(door) == door.codes[what]


@doors(*DO_NOT_STREAM)
async def test_an_answer_that_fails_midway_never_looks_whole(door: Door, tmp_path: Path) -> None:
    async with door.open(tmp_path) as model:
        model.behave = lambda call: call.part(door.part(b"first"), more=True)
        call = await door.call()
        await call.see(b"first")
        model.calls[0].fail(Cause.worker_died)
        with pytest.raises(Refused):
            await call.rest()


@doors()
async def test_a_request_that_is_too_large_reaches_no_model(door: Door, tmp_path: Path) -> None:
    async with door.open(tmp_path, max_request_size=1000) as model:
        assert await refusal(door, size=2000) == door.codes["too large"]
        assert not model.calls


@doors()
async def test_a_model_that_does_not_exist_is_told(door: Door, tmp_path: Path) -> None:
    async with door.open(tmp_path):
        assert await refusal(door, "ghost") == door.codes["unknown"]


@doors()
async def test_only_the_right_token_opens_a_door(door: Door, tmp_path: Path) -> None:
    async with door.open(tmp_path, disable_token_authorization=False) as model:
        keys = {name: each["key"] for name, each in json.loads((tmp_path / "key_file.json").read_text()).items()}
        for token in (None, "wrong", keys["management"]):
            assert await refusal(door, token=token) == door.codes["forbidden"]
        assert not model.calls
        model.behave = lambda call: call.part(door.part(b"END"))
        await (await door.call(token=keys["inference"])).see(b"END")
