"""Live sessions whose sockets, workers and servers are killed and frozen say what undisturbed ones say, byte for byte.

    python -m tests.chaos.live_sessions --store file --seconds 60

50 clients talk to two servers, which share a store, through a balancer that breaks connections; what else happens is
in ``tests.chaos.disasters``. A step is answered with all steps that count, so that a step that is lost, counts twice or
comes out of order is seen in every later answer. Later the same is said again, undisturbed. Without a store
(``memory``) a session may be lost, if something has happened to it; it never goes on without its state.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.balancer import Balancer
from tests.chaos.disasters import SERVERS, Disasters, Event
from tests.chaos.outcome import tell
from tests.chaos.timeline import Timeline

from torchserve_py.client import Answer, AsyncClient, AsyncSession, SequenceLost, SessionClosed, StepFailed

MODEL = Path(__file__).parent / "sessions_model"
SESSIONS = 50
#: The turns of a talk, and the seconds between two, at most.
TURNS = 10
PAUSE = 0.4
#: How long a session tries to go on (seconds): longer than anything lasts.
PATIENCE = 90.0
#: Causes after which a step does not count, and is sent again by this client; the session does the others by itself.
NOT_COUNTED = {"handler_error", "sequence_store", "sequence_moved", "not_applied", "no_worker", "worker_died"}
NOT_COUNTED |= {"response_timeout", "step_gap"}
CONFIG = """
minWorkers: 2
maxWorkers: 2
batchSize: 8
maxBatchDelay: 2
responseTimeout: 3
sequenceBatching: true
sequenceMaxIdleMSec: 300000
maxNumSequence: 1000
maxSequenceJobQueueSize: 6
handler:
  cache: {{store: {store}, {place} capacity: 100}}
"""
CONFIG_OF_STORES = CONFIG.replace("capacity: 100", "capacity: 30, lease: 2")


class Contradiction(Exception):
    """What a client was told is not so."""


@dataclass
class Report:
    """What was survived."""

    store: str
    clients: int = SESSIONS
    servers: int = SERVERS
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    lost: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    compared: int = 0
    contradictions: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        events = ", ".join(f"{count} × {name}" for name, count in sorted(self.events.items()))
        failures = ", ".join(f"{count} × {name}" for name, count in self.failures.most_common())
        return (
            f"{self.store}: {self.seconds:.0f} s, {self.clients} clients, {self.servers} servers. Survived: {events}.\n"
            f"  steps answered {self.answers}, slowest {self.slowest:.1f} s, failed: {failures or 'none'}; "
            f"sessions lost {self.lost}, transcripts compared {self.compared}\n"
            f"  contradictions {len(self.contradictions)}"
        )


class Talk:
    """What is said in one session; the same each time, whatever happens.

    Args:
        name: Decides what is said.
        report: What all have seen.
        turns: How often something is said.
        pauses: Whether there are pauses between turns.
    """

    def __init__(self, name: str, report: Report, turns: int, *, pauses: bool = True) -> None:
        self.name = name
        self.turns = turns
        self.said: list[bytes] = []
        self.in_order = True
        self._report = report
        self._pauses = pauses
        self._applied: list[str] = []
        self._chance = random.Random(name)
        self._count = 0

    async def run(self, client: AsyncClient) -> None:
        """Say all of it, to the end of the sequence."""
        chance = self._chance
        async with client.session("talks", content_type="text/plain") as session:
            for _ in range(self.turns):
                steps = [self._step() for _ in range(chance.choice([1, 1, 1, 2, 4, session.window]))]
                await self._say(session, steps, end=False)
                pause = PAUSE * chance.random()
                await asyncio.sleep(pause if self._pauses else 0)
            await self._say(session, [self._step()], end=True)

    def _step(self) -> tuple[str, str]:
        """Return the token and the body of a new step."""
        self._count += 1
        token = f"{self.name}.{self._count}"
        slow = self._chance.random() < 0.05
        streams = self._chance.choice([0, 0, 0, 3])
        return token, json.dumps({"token": token, "sleep": 0.2 if slow else 0.0, "stream": streams})

    async def _say(self, session: AsyncSession, steps: list[tuple[str, str]], *, end: bool) -> None:
        """Send steps together; send those that failed, and do not count, again."""
        while steps:
            began = time.monotonic()
            for _, body in steps:
                await session.send(body, end=end)
            failed = []
            for index, (token, body) in enumerate(steps):
                try:
                    answer = await session.receive()
                except StepFailed as failure:
                    self._report.failures[f"{failure.status} {failure.cause}"] += 1
                    if failure.cause not in NOT_COUNTED:
                        raise Contradiction(f"{token} failed: {failure}") from failure
                    failed.append((token, body))
                    self.in_order &= index == len(steps) - 1
                    continue
                self._heard(token, json.loads(body)["stream"], answer)
            self._report.slowest = max(self._report.slowest, time.monotonic() - began)
            steps = failed

    def _heard(self, token: str, streams: int, answer: Answer) -> None:
        self._applied.append(token)
        expected = "".join(f"{token} {part}\n" for part in range(streams))
        expected += f"{len(self._applied)}: {' '.join(self._applied)}"
        if answer.text != expected:
            raise Contradiction(f"{token} (step {answer.step}): {answer.text!r} instead of {expected!r}")
        self.said.append(answer.body)
        self._report.answers += 1


class Crowd:
    """Clients that talk, one session after another."""

    def __init__(self, report: Report, timeline: Timeline, turns: int) -> None:
        self._report = report
        self._turns = turns
        self._timeline = timeline
        self.talks: list[Talk] = []
        #: When the present talk of each client began.
        self.began: dict[int, float] = {}

    async def talk(self, client: AsyncClient, number: int, stopping: asyncio.Event) -> None:
        """Talk until it is time to stop."""
        for round_ in range(10**6):
            if stopping.is_set():
                return
            talk = Talk(f"{number}-{round_}", self._report, self._turns)
            began = self.began[number] = time.monotonic()
            try:
                await talk.run(client)
            except SequenceLost as lost:
                self._report.lost += 1
                happened = self._timeline.since(began - 5.0)
                if self._report.store != "memory" or not happened:
                    self._contradicted(talk, began, lost)
            except (Contradiction, SessionClosed, ValueError) as contradiction:
                self._contradicted(talk, began, contradiction)
            else:
                self.talks.append(talk)

    def _contradicted(self, talk: Talk, began: float, error: Exception) -> None:
        happened = "\n".join(f"  {self._timeline.clock(when)} {text}" for when, text in self._timeline.since(began))
        when = self._timeline.clock(time.monotonic())
        self._report.contradictions.append(f"{talk.name} at {when}: {type(error).__name__} {error}\n{happened}")

    async def compare(self, client: AsyncClient) -> None:
        """Say undisturbed what was said before, and compare."""
        talks, room = [talk for talk in self.talks if talk.in_order], asyncio.Semaphore(SESSIONS)

        async def again(before: Talk) -> None:
            talk = Talk(before.name, Report(self._report.store), before.turns, pauses=False)
            async with room:
                await talk.run(client)
            self._report.compared += 1
            if talk.in_order and talk.said != before.said:
                self._report.contradictions.append(f"{talk.name}: {before.said} instead of {talk.said}")

        await asyncio.gather(*(again(talk) for talk in talks))


async def _run(disasters: Disasters, report: Report, seconds: float, interval: float, turns: int) -> None:
    balancer, stopping = Balancer([each.inference for each in disasters.servers]), asyncio.Event()
    crowd = Crowd(report, disasters.timeline, turns)

    async def cut() -> None:
        random.choice([balancer.reset, balancer.leave_half_open, balancer.tear])(random.randint(1, SESSIONS // 2))

    cutting: list[Event] = [("connections cut", cut)] * 4
    async with balancer.running(), AsyncClient(balancer.url, patience=PATIENCE) as client:
        talking = [asyncio.ensure_future(crowd.talk(client, number, stopping)) for number in range(SESSIONS)]
        try:
            await disasters.rage(seconds, cutting, interval)
        finally:
            stopping.set()
            await asyncio.wait(talking, timeout=2 * PATIENCE)
        await asyncio.gather(*talking)
        await disasters.recovered()
        await crowd.compare(client)


def run(store: str, seconds: float, interval: float = 2.0, turns: int = TURNS) -> Report:
    """Let chaos reign for so long, with an event every ``interval`` seconds at most; return what was survived."""
    report = Report(store)
    began = time.monotonic()
    config = CONFIG if store == "memory" else CONFIG_OF_STORES
    limits = {"worker_heartbeat_timeout": 2, "drain_timeout": 1}
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory:
        disasters = Disasters(store, Path(directory), {"talks": MODEL}, config, Timeline(0.0), limits)
        with disasters.running():
            asyncio.run(_run(disasters, report, seconds, interval, turns))
            disasters.count_deaths()
    report.events = disasters.happened
    report.seconds = time.monotonic() - began
    return report


def main() -> int:
    """Run from the command line; return 0 if nothing was contradicted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    stores = ["file", "redis", "memory"]
    parser.add_argument("--store", choices=stores, action="append", help="default: all, in turn")
    parser.add_argument("--seconds", type=float, default=300.0, help="for each store (default: 300)")
    options = parser.parse_args()
    return tell(run(store, options.seconds) for store in options.store or stores)


if __name__ == "__main__":
    sys.exit(main())
