"""Clients that step their sequences, send again what was not answered, and know what every answer has to be."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

#: Seconds after which an unanswered request is given up and sent again.
PATIENCE = 3.0
#: How often a client goes to another server without need, and how often it ends its sequence, per step.
MOVE_RATE = 0.01
END_RATE = 0.02
PAUSE = 0.05


@dataclass
class Tally:
    """What all clients together have seen."""

    steps: int = 0  # acknowledged
    requests: int = 0
    losses: int = 0
    duplicates: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds from the first try of a step to its acknowledgement
    faults: list[str] = field(default_factory=list)


class Client:
    """One sequence after another, one step after another, at one of several servers."""

    def __init__(self, name: str, servers: Sequence[str], session: aiohttp.ClientSession, tally: Tally) -> None:
        self._name = name
        self._servers = servers
        self._server = random.randrange(len(servers))
        self._session = session
        self._tally = tally
        self._begin()

    def _begin(self) -> None:
        self._sequence = f"{self._name}-{uuid.uuid4()}"
        self._steps = self._total = 0

    async def run(self, stopping: asyncio.Event) -> None:
        """Step until it is time to stop; the last step is acknowledged too."""
        while not stopping.is_set():
            await self.step()

    async def step(self) -> None:
        """Send one number until it is acknowledged, and check what the sequence has become."""
        number = 0 if random.random() < END_RATE else random.randint(1, 99)
        if random.random() < MOVE_RATE:
            self._move()
        request_id, began = str(uuid.uuid4()), time.monotonic()
        answer = None
        while answer is None:
            answer = await self._send(number, request_id)
            if answer is None:
                await asyncio.sleep(PAUSE * random.random())
        tally = self._tally
        tally.slowest = max(tally.slowest, time.monotonic() - began)
        tally.steps += 1
        self._steps += 1
        self._total += number
        self._check(answer)
        if number == 0:
            self._begin()

    def _check(self, answer: dict[str, int]) -> None:
        if answer == {"steps": self._steps, "total": self._total}:
            return
        tally = self._tally
        tally.losses += max(0, self._steps - answer["steps"])
        tally.duplicates += max(0, answer["steps"] - self._steps)
        tally.faults.append(f"{self._sequence}: {answer} after {self._steps} acknowledged steps, total {self._total}")
        self._steps, self._total = answer["steps"], answer["total"]

    async def _send(self, number: int, request_id: str) -> dict[str, int] | None:
        headers = {
            "ts_request_sequence_id": self._sequence,
            "ts_request_id": request_id,
            "content-type": "text/plain",
        }
        if self._steps == 0:
            headers["ts_request_sequence_start"] = "true"
        url = f"{self._servers[self._server]}/predictions/chaos"
        tally = self._tally
        tally.requests += 1
        try:
            async with self._session.post(url, data=str(number), headers=headers) as response:
                body = await response.text()
                cause = response.headers.get("ts-error-cause", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            tally.refusals[type(error).__name__] += 1
            self._move()
            return None
        if response.status == 200:
            answer: dict[str, int] = json.loads(body)
            return answer
        tally.refusals[f"{response.status} {cause}"] += 1
        if response.status == 410:  # the state is gone, says the server
            tally.losses += self._steps
            tally.faults.append(f"{self._sequence}: {response.status} {cause} {body}")
            self._begin()
        elif cause in {"sequence_moved", "no_worker", "draining"}:
            self._move()
        return None

    def _move(self) -> None:
        self._server = random.randrange(len(self._servers))
