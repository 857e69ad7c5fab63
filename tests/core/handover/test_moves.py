"""Single moves, in the order in which things can go wrong."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from tests.core.handover.test_interleavings import LARGE, World, started

from torchserve_py.core.handover.move import MOVE_TRANSITIONS
from torchserve_py.core.workers.worker import Worker


def played(play: Callable[[World], Coroutine[Any, Any, None]], *, name: str = "s", runs: bool = False) -> None:
    """Play with w1, which has had one step of a sequence, or still ``runs`` it, and is to leave, and w2."""

    async def begin() -> None:
        world = await started()
        world.add_worker()
        world.add_worker()
        world.submit(name)
        if not runs:
            work(world, "w1")
        world.vacate(0, retires=False)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await play(world)
        await world.settle()

    asyncio.run(begin())


async def count(world: World) -> int:
    """Return what the next step of s gets."""
    world.submit("s")
    await world.settle()
    return int(bytes((await world.calls[-1][1].next()).body))


def work(world: World, name: str) -> None:
    while world.workers[name].to_do:
        world.workers[name].to_do.popleft()()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_step_that_comes_meanwhile_runs_at_the_taker() -> None:
    async def play(world: World) -> None:
        world.submit("s")
        work(world, "w1")
        await turns()
        assert [bool(world.workers[name].to_do) for name in ("w1", "w2")] == [False, True]
        work(world, "w2")
        await turns()
        work(world, "w2")
        work(world, "w1")
        assert [world.workers[name].counts for name in ("w1", "w2")] == [{}, {"s": 2}]

    played(play)


def test_a_sequence_moves_in_the_moment_in_which_its_step_is_over() -> None:
    async def play(world: World) -> None:
        await turns()
        work(world, "w1")
        await turns()
        assert len(world.workers["w1"].to_do) == 1, "it is asked for the state"

    played(play, runs=True)


def test_a_taker_that_dies_after_it_has_taken_the_sequence_leaves_it_at_the_giver() -> None:
    async def play(world: World) -> None:
        work(world, "w1")
        await turns()
        work(world, "w2")
        world.kill(1)  # the one that follows it has its id and is up before the move goes on
        assert world.workers["w2"].counts == {}
        await turns()
        assert await count(world) == 2

    played(play)


def test_a_state_that_was_sent_ahead_of_a_sequence_that_stays_is_kept_nowhere() -> None:
    async def play(world: World) -> None:
        while len(world.workers["w2"].to_do) < 2:
            work(world, "w1")
            await turns()
        assert world.workers["w1"].copies
        worker = world.workers.pop("w2")
        worker.ended.set_result("was killed")
        world.dispatcher.worker_lost(cast("Worker", worker))
        await world.settle()
        assert world.workers["w1"].counts == {"u": 1}, "it stays, since there is no other worker"
        assert world.workers["w1"].copies == {}

    played(play, name="u")


def test_a_sequence_that_ends_while_it_moves_leaves_nothing_anywhere() -> None:
    async def play(world: World) -> None:
        work(world, "w1")
        await turns()
        world.end("s")
        world.submit("s")
        await world.settle()
        assert int(bytes((await world.calls[-1][1].next()).body)) == 1
        assert sum("s" in each.counts for each in world.workers.values()) == 1

    played(play)


def test_a_giver_that_dies_while_its_sequence_moves_loses_it() -> None:
    async def play(world: World) -> None:
        work(world, "w1")
        await turns()
        world.kill(0)
        await world.settle()
        assert world.workers["w2"].counts == {}
        assert world.dispatcher.scheduler.sequence("s") is None

    played(play)


def test_a_state_that_cannot_be_sent_ahead_at_all_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(world: World) -> None:
        giver, again = world.workers["w1"], []  # which has been asked for the state already
        refusal = ["no_room", "it is a test"]

        def give(answer: asyncio.Future[Any], *fields: Any) -> None:
            again.append(fields)
            answer.set_result(refusal)

        monkeypatch.setattr(giver, "give", give)
        monkeypatch.setattr(giver, "give_ahead", lambda answer, *fields: answer.set_result(refusal))
        await world.settle()
        assert again == []
        assert giver.counts == {LARGE[0]: 1}

    played(play, name=LARGE[0])


@pytest.mark.parametrize("state", sorted({state for state, _ in MOVE_TRANSITIONS}))
def test_a_move_can_always_end(state: Any) -> None:
    ends = {MOVE_TRANSITIONS[key] for key in MOVE_TRANSITIONS if key[0] == state}
    assert "over" in ends
    assert "stayed" in ends


@pytest.mark.parametrize("refuses", ["w1", "w2"])
def test_a_worker_is_not_told_of_the_end_of_a_sequence_that_it_never_had(refuses: str) -> None:
    async def play(world: World) -> None:
        if refuses == "w2":
            work(world, "w1")
            await turns()
        world.refuses["s"] = True
        await world.settle()
        assert world.workers["w2"].told == []
        assert await count(world) == 2

    played(play)
