"""Sequences in memory while workers are scaled and restarted, and their server is restarted, under load.

    python -m tests.chaos.moving [--sessions 1000] [--large 20] [--rounds 2] [--servers 2 [--redis] [--proxy]]

Clients step sequences by numbers; the states of some have 10 MB. A step is lost if the next one is refused, and doubled
if an answer counts more steps than were sent. The pause is how long a client waited for one answer, the refusals of a
server that stops and starts included. With two servers, which share a folder, or Redis, these are restarted in turn,
and a client that is refused goes to the other one; with a proxy, to the one that HAProxy chooses by the id of the
sequence, which sends sequences back once their first server has returned.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.proxies import HAProxy
from tests.redis_server import RedisServer

HANDLER = """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        answers = []
        for index in range(len(data)):
            size = 10_000_000 if context.get_sequence_id(index).startswith("large") else 100
            state = context.state.get(index) or {"count": 0, "rest": bytes(size)}
            context.state[index] = {**state, "count": state["count"] + 1}
            answers.append(str(state["count"] + 1))
        return answers
"""
CONFIG = (
    "sequenceBatching: true\nsequenceMaxIdleMSec: 3600000\nmaxNumSequence: 4000\nbatchSize: 16\nmaxBatchDelay: 0\n"
    "minWorkers: 2\nmaxWorkers: 3\n"
)
#: What a step may be told while the server stops or starts.
_RETRIED = (503,)
#: Seconds between two attempts at all servers, and on average between two steps of a client.
_AGAIN, _PACE = 0.2, 2.0


@dataclass
class Report:
    """What clients have seen.

    Attributes:
        wrong: What each client that was told something else than the next number was told.
        pauses: By what was done, how long answers took (seconds), in order.
    """

    sessions: int
    steps: int = 0
    wrong: list[str] = field(default_factory=list)
    pauses: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.sessions} sessions, {self.steps} steps, {len(self.wrong)} lost or doubled"]
        for what, pauses in self.pauses.items():
            ordered = sorted(pauses) or [0.0]
            half, most = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            times = f"p50 {half:.3f} s, p99 {most:.3f} s, longest {ordered[-1]:.3f} s"
            lines.append(f"{what} ({self.seconds[what]:.1f} s): {len(pauses)} steps, {times}")
        return "\n".join(lines)


class Clients:
    """Step their sequences until they are stopped."""

    def __init__(self, urls: Sequence[str], report: Report, large: int) -> None:
        self._urls, self._report = urls, report
        self._names = [f"large{number}" if number < large else f"s{number}" for number in range(report.sessions)]
        self._what = ""
        self.over = False

    async def run(self) -> None:
        """Step all sequences."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=100)) as session:
            steps = (self._step_on(session, name, number) for number, name in enumerate(self._names))
            await asyncio.gather(*steps)

    def during(self, what: str) -> None:
        """Note the steps that end from now on as those during something."""
        self._what = what
        self._report.pauses[what] = []

    async def _step_on(self, session: aiohttp.ClientSession, name: str, server: int) -> None:
        number = 0
        while not self.over:
            number += 1
            began = time.monotonic()
            server, status, text = await self._answer(session, name, number, server)
            self._report.pauses[self._what].append(time.monotonic() - began)
            if (status, text) != (200, str(number)):
                self._report.wrong.append(f"{name}, step {number}: {status} {text[:100]}")
                return
            self._report.steps += 1
            await asyncio.sleep(2 * _PACE * random.random())

    async def _answer(
        self, session: aiohttp.ClientSession, name: str, number: int, server: int
    ) -> tuple[int, int, str]:
        """Return which server has answered, and what; each refusal leads to the next one."""
        headers = {"ts_request_sequence_id": name, "ts_request_sequence_token": f"t-{name}"}
        headers["ts_request_step"] = str(number)
        until, attempts = time.monotonic() + DEADLINE, 0
        while True:
            try:
                async with session.post(self._urls[server % len(self._urls)], data=b"", headers=headers) as answer:
                    text = await answer.text()
                    if answer.status not in _RETRIED or time.monotonic() > until:
                        return server, answer.status, text
            except aiohttp.ClientError:
                if time.monotonic() > until:
                    raise
            server, attempts = server + 1, attempts + 1
            if not attempts % len(self._urls):
                await asyncio.sleep(_AGAIN)


def _restart_server(server: RunningServer, proxy: HAProxy | None = None) -> None:
    starts = server.log().count("Model server started.")
    assert server.terminate() == 0
    server.launch()
    eventually(lambda: server.log().count("Model server started.") > starts, "it was restarted")
    server.wait_ready()
    if proxy is not None:
        proxy.wait_for(2)


def _restart_workers(server: RunningServer) -> None:
    answer = requests.put(f"{server.management}/models/counting/1.0/restart", timeout=DEADLINE)
    assert answer.json()["state"] == "done", answer.text


async def _run(
    servers: Sequence[RunningServer], proxy: HAProxy | None, report: Report, large: int, rounds: int
) -> None:
    urls = [server.inference for server in servers] if proxy is None else [proxy.url]
    clients = Clients([f"{url}/predictions/counting" for url in urls], report, large)
    clients.during("before")
    report.seconds["before"] = 3 * _PACE
    running = asyncio.create_task(clients.run())
    await asyncio.sleep(report.seconds["before"])
    events: dict[str, Callable[[RunningServer], object]] = {
        "a worker less": lambda server: server.scale("counting", 1),
        "a worker more": lambda server: server.scale("counting", 2),
        "workers restarted": _restart_workers,
        "server restarted": lambda server: _restart_server(server, proxy),
    }
    try:
        for number in range(rounds):
            for what, event in events.items():
                name = f"{what}, {number + 1}"
                clients.during(name)
                began = time.monotonic()
                for server in servers:
                    await asyncio.to_thread(event, server)
                report.seconds[name] = time.monotonic() - began
                await asyncio.sleep(2 * _PACE)
    finally:
        clients.over = True
        await running


def run(
    sessions: int, large: int, rounds: int, servers: int = 1, *, proxied: bool = False, in_redis: bool = False
) -> Report:
    """Let workers and servers come and go, under so many sessions, some of them ``large``."""
    report = Report(sessions)
    with tempfile.TemporaryDirectory(prefix="chaos-") as directory, contextlib.ExitStack() as running:
        folder = model_folder(Path(directory), "counting", HANDLER, CONFIG)
        shared: dict[str, object] = {"fleet_state": f"{directory}/fleet"} if servers > 1 else {}
        if in_redis:
            (Path(directory) / "redis").mkdir()
            shared["fleet_state"] = running.enter_context(RedisServer(Path(directory) / "redis")).url
        started: list[RunningServer] = []
        for _ in range(servers):
            server = RunningServer({"counting": folder}, {"drain_timeout": 10, **shared})
            started.append(running.enter_context(server))
            server.wait_ready()
        proxy = running.enter_context(HAProxy([server.inference for server in started])) if proxied else None
        if proxy is not None:
            proxy.wait_for(servers)
        asyncio.run(_run(started, proxy, report, large, rounds))
        if report.wrong:
            for server in started:
                print(server.story()[-5000:], file=sys.stderr)
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--large", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--servers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--proxy", action="store_true")
    given = parser.parse_args()
    found = run(given.sessions, given.large, given.rounds, given.servers, proxied=given.proxy, in_redis=given.redis)
    print(found, *found.wrong[:20], sep="\n")
    sys.exit(bool(found.wrong))
