"""Turns of sequences: one at a time, in order, whoever leaves."""

import asyncio

from torchserve_py.apis.openai.sequence_turns import SequenceTurns


def test_turns_pass_in_order_and_nobody_who_left_keeps_one() -> None:
    async def run() -> list[int]:
        turns, had = SequenceTurns(), list[int]()

        async def take(number: int) -> None:
            await turns.wait("a")
            had.append(number)
            await asyncio.sleep(0)
            turns.pass_on("a")

        assert turns.take("a")
        assert not turns.take("a")
        assert turns.take("b"), "of another sequence"
        tasks = [asyncio.create_task(take(number)) for number in range(5)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        turns.pass_on("a")
        tasks[1].cancel()  # it has the turn, and has not woken up
        await asyncio.gather(*tasks, return_exceptions=True)
        assert turns.take("a"), "all have had it"
        return had

    assert asyncio.run(run()) == [2, 3, 4]
