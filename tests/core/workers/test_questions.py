"""Questions to a worker: each answer finds its question, and nobody waits for a worker that is gone."""

import asyncio
from typing import Any

import msgpack
import pytest

from torchserve_py.core.workers.worker import Questions

DEADLINE = 60.0


class Asked:
    """A worker that has been asked and answers when the test says so."""

    def __init__(self) -> None:
        self.messages: list[list[Any]] = []
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.questions = Questions(self._send, self.ended)

    def _send(self, buffers: list[Any]) -> None:
        frame = b"".join(map(bytes, buffers))
        self.messages.append(msgpack.unpackb(frame[4:]))

    async def ask(self, limit: float = DEADLINE) -> asyncio.Task[Any]:
        """Begin to wait for an answer."""
        asking = asyncio.create_task(self.questions.ask("health", limit))
        await asyncio.sleep(0)
        return asking


@pytest.fixture
async def asked() -> Asked:
    return Asked()


async def test_each_answer_finds_its_question(asked: Asked) -> None:
    first, second = await asked.ask(), await asked.ask()
    (kind, number), (_, other) = asked.messages
    assert (kind, number != other) == ("health", True)
    asked.questions.answered(other, b"two")
    asked.questions.answered(number, b"one")
    assert (await first, await second) == (b"one", b"two")


async def test_a_worker_that_goes_away_gives_no_answer(asked: Asked) -> None:
    asking = await asked.ask()
    asked.ended.set_result("killed")
    assert await asyncio.wait_for(asking, DEADLINE) is None


async def test_an_answer_that_comes_too_late_is_dropped(asked: Asked) -> None:
    assert await (await asked.ask(limit=0.0)) is None
    asked.questions.answered(asked.messages[0][1], True)
    asking = await asked.ask()
    asked.questions.answered(asked.messages[1][1], False)
    assert await asking is False
