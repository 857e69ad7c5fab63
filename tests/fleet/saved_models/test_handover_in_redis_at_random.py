"""Servers whose connections to Redis break, in random orders: each step counts once, and none is lost."""

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.core.handover.test_interleavings import World
from tests.core.handover.test_shared_folder import told
from tests.core.handover.test_shared_folder_at_random import Client, play
from tests.redis_server import RedisServer

from torchserve_py.core.handover import next_server, whereabouts
from torchserve_py.core.handover.storage import Storage
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.fleet.saved_models import handover_in_redis
from torchserve_py.fleet.saved_models.handover_in_redis import HandoverInRedis

#: The share of calls of Redis that fail; as many fail although they are made, and as many are made twice.
FAILURES = 0.1
#: The same where each mark is told by a call of its own: a look fails about as often then. Where nearly all of them
#: fail, a sequence may begin at a server that could not tell the others.
FAILURES_OF_PARTS = 0.02
WHAT = ["step"] * 6 + ["work"] * 8 + ["turn"] * 6 + ["hop"] * 3


class NumberedClient(Client):
    """Numbers its steps, and sends a step again that was refused."""

    def step(self) -> None:
        if self.call is None:
            sequence = SequenceRequest(self.sequence_id, False, False, (), self.count + 1, "a token")
            self.call = self.at.shell.run(Call((), "", "text/plain", sequence=sequence, by_default=True))

    async def look(self, *, refuses: bool) -> None:
        if self.call is None or not self.call.ended:
            return
        heard, self.call = await told(self.call), None
        if heard == "sequence_moved":
            self.hop()
            self.step()
        else:
            assert heard == str(self.count + 1), f"step {self.count + 1} of {self.sequence_id} was told {heard}"
            self.count += 1


def fails_at_random(patch: pytest.MonkeyPatch, choice: random.Random, failures: float) -> None:
    """Let calls of Redis fail, before they are made, or after that; others are made twice."""
    call = HandoverInRedis._call

    def faulty(of: HandoverInRedis, command: Callable[[], Any]) -> Any:
        which = choice.random() / failures
        if which < 1:
            raise OSError("it was not sent")
        answer = call(of, command)
        if which < 2:
            raise OSError("it has no answer")
        if which < 3:
            time.sleep(0.02)  # others are faster
            return call(of, command)
        return answer

    patch.setattr(HandoverInRedis, "_call", faulty)


def play_all(
    patch: pytest.MonkeyPatch, redis_server: RedisServer, name: str, count: int, failures: float = FAILURES
) -> None:
    patch.setattr(whereabouts, "_WANTED_INTERVAL", 0.005)
    patch.setattr(next_server, "_READ_AGAIN", 0.005)
    patch.setattr(handover_in_redis, "_TELLING", 0.05)
    worlds: list[World] = []
    for seed in range(count):
        with patch.context() as context:
            fails_at_random(context, random.Random(seed), failures)

            async def server(fleet: str = f"{name}-{seed}") -> World:
                def storage() -> Storage:
                    in_redis = HandoverInRedis(redis_server.url, fleet)
                    return Storage(in_redis, in_redis)

                world = World(storage)
                await world.start_server()
                world.add_worker()
                worlds.append(world)
                return world

            asyncio.run(play(random.Random(seed), server, refuses=False, kind=NumberedClient, what=WHAT))
        while worlds:
            given_up = worlds.pop().dispatcher.metrics.handover.given_up.value
            assert not given_up, "another server had a sequence, too"


def test_each_step_counts_once_although_connections_break(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_all(monkeypatch, redis_server, "sound", 4)


def test_each_step_counts_once_although_connections_break_between_parts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover_in_redis, "_TOLD_AT_ONCE", 1)
    play_all(monkeypatch, redis_server, "parts", 4, FAILURES_OF_PARTS)


def counts_before_its_writer_has_told(patch: pytest.MonkeyPatch) -> None:
    script, rule = handover_in_redis._LOOK, "version and found ~= 'e'"
    assert rule in script
    patch.setattr(handover_in_redis, "_LOOK", script.replace(rule, "version"))


def begins_anew_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scheduler, "may_begin", lambda scheduler, sequence, now: True)


@pytest.mark.parametrize("mutate", [counts_before_its_writer_has_told, begins_anew_unseen])
def test_servers_with_a_defect_are_found(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, mutate: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        play_all(monkeypatch, redis_server, mutate.__name__, 20)
