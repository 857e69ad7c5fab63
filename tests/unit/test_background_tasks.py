"""Tasks that nobody awaits."""

import asyncio
import gc

import pytest

from torchserve_py.base.background_tasks import in_background


async def test_what_fails_is_logged_at_once_though_the_task_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise RuntimeError("a defect")

    task = in_background(fail(), "watching the kettle")
    await asyncio.wait([task])
    await asyncio.sleep(0)
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("ERROR", "A task of the server has failed: watching the kettle")
    assert "a defect" in caplog.text


async def test_a_task_is_kept_until_it_ends_and_a_cancelled_one_has_not_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.get_running_loop().create_future()  # nothing else refers to it, or to the task

    in_background(wait(), "waiting")
    await begun.wait()
    gc.collect()
    (task,) = [each for each in asyncio.all_tasks() if each.get_name() == "waiting"]
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert not caplog.records
