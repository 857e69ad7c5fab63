"""What every endpoint does for its clients: a row for each endpoint (`every_endpoint`), a test for each duty."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.every_endpoint import ENDPOINTS, LIMIT, Endpoint, OverHttp, Refused, Session
from tests.endpoints.fake_serving import FakeModel
from tests.endpoints.raw_requests import until

from torchserve_py.base.causes import Cause
from torchserve_py.base.logs import access_log

#: A policy answers in one piece.
DO_NOT_STREAM = ("openpi",)


def endpoints(*but: str) -> Any:
    """Run a test for every endpoint except these."""
    return pytest.mark.parametrize(
        "endpoint", [pytest.param(endpoint, id=endpoint.name) for endpoint in ENDPOINTS if endpoint.name not in but]
    )


def logged(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The statuses in the access log."""
    access_log.flush()
    return [record.status for record in caplog.records if record.name == access_log.LOGGER_NAME]  # type: ignore[attr-defined]


async def refusal(endpoint: Endpoint, model: str = "m", **more: Any) -> Any:
    """What a client is told whose request is refused, or fails."""
    with pytest.raises(Refused) as refused:
        await (await endpoint.call(model, **more)).rest()
    return refused.value.code


async def check_leaving(endpoint: Endpoint, model: FakeModel, caplog: pytest.LogCaptureFixture, seen: bytes) -> None:
    """A client leaves after it has seen this of an answer: its job is cancelled, and the request logged and counted."""
    call = await endpoint.call()
    await until(lambda: model.calls)
    if seen:
        await call.see(seen)
    assert not model.cancelled.is_set()
    await call.leave()
    async with asyncio.timeout(LIMIT):
        await model.cancelled.wait()
    await until(lambda: logged(caplog))
    assert logged(caplog) == [endpoint.left[bool(seen)]]
    if isinstance(endpoint, OverHttp):
        assert [status for _, _, status in endpoint.endpoints.metrics.http_requests.elements()] == logged(caplog)
    if isinstance(endpoint, Session):
        await until(lambda: model.released == [model.calls[0].sequence_id])


@endpoints()
async def test_leaving_before_the_answer_cancels_the_job(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", access_log.LOGGER_NAME)
    async with endpoint.open(tmp_path, access_log=True) as model:
        model.behave = lambda call: None
        await check_leaving(endpoint, model, caplog, b"")


@endpoints(*DO_NOT_STREAM)
async def test_leaving_within_the_answer_cancels_the_job(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", access_log.LOGGER_NAME)
    async with endpoint.open(tmp_path, access_log=True) as model:
        model.behave = lambda call: call.part(endpoint.part(b"first"), more=True)
        await check_leaving(endpoint, model, caplog, b"first")


@endpoints(*DO_NOT_STREAM)
async def test_a_slow_reader_holds_the_answer_back_and_misses_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    text = b"x" * 1_000_000
    async with endpoint.open(tmp_path) as model:

        def behave(call: Any) -> None:
            if len(model.calls) == 1:
                for _ in range(30):
                    call.part(endpoint.part(text), more=True)
            call.part(endpoint.part(b"END"))

        model.behave = behave
        call = await endpoint.call()
        await until(lambda: model.calls)
        for _ in range(200):  # turns in which an answer that nothing holds back would be sent
            await asyncio.sleep(0)
        assert model.calls[0].call.buffered_bytes > 0
        assert (await call.rest()).count(text) == 30


@endpoints()
@pytest.mark.parametrize(
    ("what", "cause"),
    [("failed", Cause.worker_died), ("overloaded", Cause.queue_full), ("expired", Cause.client_timeout)],
)
async def test_a_request_that_is_not_answered_says_why(
    endpoint: Endpoint, what: str, cause: Cause, tmp_path: Path
) -> None:
    async with endpoint.open(tmp_path) as model:
        model.behave = lambda call: call.fail(cause)
        assert await refusal(endpoint) == endpoint.codes[what]


@endpoints(*DO_NOT_STREAM)
async def test_an_answer_that_fails_midway_never_looks_whole(endpoint: Endpoint, tmp_path: Path) -> None:
    async with endpoint.open(tmp_path) as model:
        model.behave = lambda call: call.part(endpoint.part(b"first"), more=True)
        call = await endpoint.call()
        await call.see(b"first")
        model.calls[0].fail(Cause.worker_died)
        with pytest.raises(Refused):
            await call.rest()


@endpoints()
async def test_a_request_that_is_too_large_reaches_no_model(endpoint: Endpoint, tmp_path: Path) -> None:
    async with endpoint.open(tmp_path, max_request_size=1000) as model:
        assert await refusal(endpoint, size=2000) == endpoint.codes["too large"]
        assert not model.calls


@endpoints()
async def test_a_model_that_does_not_exist_is_told(endpoint: Endpoint, tmp_path: Path) -> None:
    async with endpoint.open(tmp_path):
        assert await refusal(endpoint, "ghost") == endpoint.codes["unknown"]


@endpoints()
async def test_only_the_right_token_opens_an_endpoint(endpoint: Endpoint, tmp_path: Path) -> None:
    async with endpoint.open(tmp_path, disable_token_authorization=False) as model:
        keys = {name: each["key"] for name, each in json.loads((tmp_path / "key_file.json").read_text()).items()}
        for token in (None, "wrong", keys["management"]):
            assert await refusal(endpoint, token=token) == endpoint.codes["forbidden"]
        assert not model.calls
        model.behave = lambda call: call.part(endpoint.part(b"END"))
        await (await endpoint.call(token=keys["inference"])).see(b"END")
