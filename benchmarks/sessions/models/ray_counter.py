"""The model behind Ray Serve: a deployment before actors with the states. Run it as ``python ray_counter.py PORT``.

A session always goes to the same of four actors, which Ray starts anew if they die.
"""

import sys
import time
import zlib
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

ACTORS = 4
FACTOR, MODULUS = 31, 2**31 - 1


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class States:
    """Keeps the states of a share of the sessions."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, int]] = {}

    def step(self, step: dict[str, Any]) -> str:
        """Return the state after a step."""
        count, checksum = (0, 0) if step["start"] else self.states.get(step["session"], (0, 0))
        state = count + 1, (checksum * FACTOR + step["number"]) % MODULUS
        self.states[step["session"]] = state
        if step["end"]:
            del self.states[step["session"]]
        return f"{state[0]} {state[1]}"


@serve.deployment(max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0})
class Counter:
    """Passes each step on to the actor of its session."""

    def __init__(self, actors: list[Any]) -> None:
        self.actors = actors

    async def __call__(self, request: Request) -> str:
        """Return the state after a step: a JSON object with ``session``, ``number``, ``start`` and ``end``."""
        step = await request.json()
        actor = self.actors[zlib.crc32(step["session"].encode()) % len(self.actors)]
        return str(await actor.step.remote(step))


if __name__ == "__main__":
    ray.init(include_dashboard=False, num_cpus=2, logging_level="error")
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Counter.bind([States.remote() for _ in range(ACTORS)]), name="counter", route_prefix="/")
    while True:
        time.sleep(3600)
