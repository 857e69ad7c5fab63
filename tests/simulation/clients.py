"""Clients: each runs one incarnation of its sequence after another, and sends a step until it knows what came of it.

What a client names its steps by decides what it is promised:

* ``numbered``: the step's number, and a token that the client has made up for the incarnation;
* ``given``: the step's number, and the token that the first answer gives;
* ``ids``: an id of its own for each step;
* ``counted``: the step's number as its id, so that the ids come again in the next incarnation;
* ``bare``: nothing.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tests.simulation.history import Answer, Step
from tests.simulation.network import Network
from tests.simulation.servers import Server
from tests.simulation.world import Machine, World

KINDS: Final = ("numbered", "numbered", "given", "ids", "counted", "bare")
#: How long a client may try to have one step applied (seconds).
SETTLE_LIMIT: Final = 300.0
#: Once all is calm, a sequence continues within so long (seconds).
CALM_LIMIT: Final = 30.0
#: Pauses between the steps of a client (seconds): one of these, at most.
_PAUSES: Final = (0.0, 0.0, 0.1, 0.1, 1.0, 5.0, 20.0, 200.0, 4000.0)
_APPLIED: Final = "step_applied"


class Client:
    """The client of one sequence."""

    def __init__(
        self,
        world: World,
        name: str,
        kind: str,
        network: Network,
        servers: Sequence[Server],
        *,
        requires_start: bool,
        roams: float = 0.0,
    ) -> None:
        self.name, self.kind, self._requires_start = name, kind, requires_start
        self.process = world.process(name, Machine(world, name))
        #: How likely it is that a request goes to any server, as through a proxy that does not know of sequences.
        self._roams = roams
        self._world, self._network, self._servers, self._random = world, network, servers, world.random
        self._server = self._random.choice(servers)
        self._incarnation = 0
        self._token = ""
        self._applied: list[Step] = []
        #: What the client knows of its latest incarnation: ``none`` (it has begun none), ``open``, ``ended``, ``gone``
        #: (it was told so) or ``doubt`` (it has given up).
        self.condition = "none"
        #: Whether the last of all steps was settled; see `finish`.
        self.is_satisfied = False

    async def run(self) -> None:
        """Run some incarnations."""
        for _ in range(self._random.randint(1, 3)):
            await self._run_incarnation(self._random.randint(1, 6))
            await self._pause()

    async def finish(self) -> None:
        """Step once more, in peace; where the sequence is gone, begin another. Ask again for all that was applied."""
        end = self._world.now + CALM_LIMIT
        for _ in range(6):
            if self.condition != "open":
                self._begin()
            await self._settle(self._next_step(may_end=False))
            if self.condition == "open":
                break
        self.is_satisfied = self.condition == "open" and self._world.now < end
        if self.is_satisfied and self.kind != "bare":
            for step in self._applied:
                await self._send(step, 10.0)

    def _begin(self) -> None:
        self._incarnation += 1
        self._applied = []
        self._token = f"{self.name}-token-{self._incarnation}" if self.kind == "numbered" else ""

    async def _run_incarnation(self, length: int) -> None:
        self._begin()
        ends = self._random.random() < 0.6
        while len(self._applied) < length:
            left = length - len(self._applied)
            step = self._next_step(may_end=ends and left == 1)
            if left > 1 and self._applied and self.kind == "numbered" and self._random.random() < 0.2:
                await self._settle_together(step, replace(step, number=step.number + 1, ends=ends and left == 2))
            else:
                await self._settle(step)
            if self.condition != "open":
                return
            if self._random.random() < 0.2:
                await self._misbehave()
            await self._pause()

    async def _settle_together(self, step: Step, following: Step) -> None:
        """Send a step before the answer to the one before it has come."""
        ahead = self.process.loop.create_task(self._send(following, 1.0))
        await self._settle(step)
        await ahead
        if self.condition == "open":
            await self._settle(following)

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.random() * self._random.choice(_PAUSES))

    def _next_step(self, *, may_end: bool) -> Step:
        number = len(self._applied) + 1
        may_omit = self.condition in {"none", "ended"} and (self.kind == "numbered" or not self._requires_start)
        starts = number == 1 and not (may_omit and self._random.random() < 0.3)
        return Step(self.name, self._incarnation, number, self.kind, starts, may_end)

    async def _misbehave(self) -> None:
        """Send a step again that was answered: as it was, with another body, or only to ask what has become of it."""
        step = self._random.choice(self._applied)
        if self.kind != "bare":
            change: dict[str, bool] = self._random.choice(({}, {"altered": True}, {"asks": True}))
            await self._send(replace(step, **change), 2.0)

    # One step

    async def _settle(self, step: Step) -> None:
        """Send a step until its outcome is known, and note what is known then."""
        end = self._world.now + SETTLE_LIMIT
        while self._world.now < end:
            answer = await self._send(step, self._random.choice((0.5, 2.0, 10.0)))
            if answer is None or answer.status == 0:
                self._server = self._random.choice(self._servers)
            elif answer.status == 200 or answer.cause == _APPLIED:
                self._applied.append(step)
                self._token = self._token or answer.token
                self.condition = "ended" if step.ends else "open"
                return
            elif answer.status == 410:
                self.condition = "gone"
                if answer.cause == "version_gone":  # perhaps until the server is back that has the version
                    self._server = self._random.choice(self._servers)
                    await asyncio.sleep(5.0)
                return
            elif _is_final(answer):
                break
            if answer is not None and answer.cause in {"sequence_moved", "draining"}:
                self._server = self._random.choice(self._servers)
            await asyncio.sleep(self._random.random())
        self.condition = "doubt"

    async def _send(self, step: Step, patience: float) -> Answer | None:
        if self._roams and self._random.random() < self._roams:
            self._server = self._random.choice(self._servers)
        answer = await self._network.ask(self.process, self._server, step, self._headers(step), patience)
        heard = "nothing" if answer is None else answer
        self._world.history.add(self._world.now, self.name, "heard", step, 0, heard)
        return answer

    def _headers(self, step: Step) -> dict[str, str]:
        headers = {"ts_request_sequence_id": step.client}
        if step.starts:
            headers["ts_request_sequence_start"] = "true"
        if step.ends:
            headers["ts_request_sequence_end"] = "true"
        if self.kind in {"numbered", "given"}:
            headers["ts_request_step"] = str(step.number)
            if self._token:
                headers["ts_request_sequence_token"] = self._token
        if self.kind == "ids":
            headers["ts_request_id"] = f"{step.client}/{step.incarnation}/{step.number}"
        elif self.kind == "counted":
            headers["ts_request_id"] = str(step.number)
        return headers


def _is_final(answer: Answer) -> bool:
    """Whether the same step would be told the same again."""
    if answer.status == 409:
        return answer.cause not in {"sequence_moved", "request_running"}
    return answer.cause == "state_damaged"
