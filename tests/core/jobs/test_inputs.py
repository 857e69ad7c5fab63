"""Further inputs of a job: held until it has a worker, never more than the model can take, none after its end."""

import asyncio

from torchserve_py.core.jobs.parts import MAX_UNTAKEN, MAX_UNTAKEN_BYTES, Input, Inputs


class Wire:
    """What passes inputs on, once there is a worker."""

    def __init__(self, *, connected: bool = True) -> None:
        self.connected = connected
        self.sent: list[Input] = []

    def __call__(self, given: Input) -> bool:
        if self.connected:
            self.sent.append(given)
        return self.connected


async def fill(inputs: Inputs) -> None:
    for number in range(MAX_UNTAKEN):
        await inputs.send(b"%d" % number, more=True)


async def test_inputs_are_held_in_order_until_the_job_has_a_worker() -> None:
    wire = Wire(connected=False)
    inputs = Inputs(wire)
    await inputs.send(b"1", more=True)
    await inputs.send(b"2", more=False)
    assert inputs.take_held() == [(True, b"1"), (False, b"2")]
    assert inputs.take_held() == []


async def test_a_client_that_is_faster_than_the_model_waits_for_it() -> None:
    wire = Wire()
    inputs = Inputs(wire)
    await fill(inputs)
    waiting = asyncio.create_task(inputs.send(b"next", more=False))
    await asyncio.sleep(0)
    assert not waiting.done()
    inputs.taken(1)
    await asyncio.wait_for(waiting, 10)
    assert wire.sent[-1] == (False, b"next")


async def test_nothing_is_sent_once_the_job_has_ended_and_nobody_waits_then() -> None:
    wire = Wire()
    inputs = Inputs(wire)
    await fill(inputs)
    waiting = asyncio.create_task(inputs.send(b"late", more=True))
    await asyncio.sleep(0)
    inputs.end()
    await asyncio.wait_for(waiting, 10)
    await inputs.send(b"later", more=False)
    assert len(wire.sent) == MAX_UNTAKEN


async def test_few_large_inputs_are_as_much_as_many_small_ones() -> None:
    wire = Wire()
    inputs = Inputs(wire)
    await inputs.send(bytes(MAX_UNTAKEN_BYTES), more=True)
    waiting = asyncio.create_task(inputs.send(b"next", more=False))
    await asyncio.sleep(0)
    assert not waiting.done()
    inputs.taken(1)
    await asyncio.wait_for(waiting, 10)
    assert len(wire.sent) == 2
