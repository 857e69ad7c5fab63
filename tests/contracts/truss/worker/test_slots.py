"""Slots under every interleaving of arrivals, releases, departures and cancellations."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ts.contracts.truss.model_request import TrussClient
from ts.contracts.truss.slots import Slot, Slots

#: What happens next: somebody comes, or one of those who are there releases, leaves, or has its task cancelled.
STEPS = st.lists(
    st.one_of(
        st.just(("arrive", 0)),
        st.tuples(st.sampled_from(["release", "leave", "cancel"]), st.integers(min_value=0, max_value=7)),
        st.just(("run", 0)),
    ),
    max_size=60,
)


class Player:
    """Plays steps on slots and checks after each that nobody has what is not theirs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.slots = Slots(count)
        self.clients: list[TrussClient] = []
        self.tasks: list[asyncio.Task[bool]] = []
        self.releases: list[asyncio.Event] = []
        self.arrived: list[int] = []
        self.entered: list[int] = []
        self.holding: set[int] = set()

    async def hold(self, number: int) -> bool:
        self.arrived.append(number)
        waits = self.slots.free == 0
        if not await self.slots.acquire(self.clients[number]):
            return False
        slot = Slot(self.slots)
        try:
            if waits:
                self.entered.append(number)
            self.holding.add(number)
            await self.releases[number].wait()
            return True
        finally:
            self.holding.discard(number)
            slot.release()
            slot.release()

    async def play(self, steps: list[tuple[str, int]]) -> None:
        for step, index in steps:
            if step == "arrive":
                self.clients.append(TrussClient())
                self.releases.append(asyncio.Event())
                self.tasks.append(asyncio.create_task(self.hold(len(self.tasks))))
            elif step == "run":
                await asyncio.sleep(0)
            elif self.tasks:
                number = index % len(self.tasks)
                if step == "release":
                    self.releases[number].set()
                elif step == "leave":
                    self.clients[number].leave()
                else:
                    self.tasks[number].cancel()
            self.check()
        for release in self.releases:
            release.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert (self.slots.free, self.slots.waiting, self.holding) == (self.count, 0, set())
        assert self.entered == sorted(self.entered)  # of those who had to wait, who came first went in first

    def check(self) -> None:
        assert len(self.holding) + self.slots.free <= self.count
        assert self.slots.free == 0 or self.slots.waiting == 0


@given(count=st.integers(min_value=1, max_value=3), steps=STEPS)
def test_slots_are_given_in_order_and_all_come_back(count: int, steps: list[tuple[str, int]]) -> None:
    asyncio.run(Player(count).play(steps))


async def test_nobody_who_has_left_gets_one() -> None:
    slots, client = Slots(1), TrussClient()
    client.leave()
    assert not await slots.acquire(client)
    assert slots.free == 1


async def test_a_slot_that_was_given_to_a_task_which_is_cancelled_at_that_moment_is_not_lost() -> None:
    slots = Slots(1)
    assert await slots.acquire(TrussClient())
    waiting = asyncio.create_task(slots.acquire(TrussClient()))
    await asyncio.sleep(0)
    slots.release()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert slots.free == 1
