"""How long steps of sequences pause while servers behind HAProxy are restarted one after the other.

    python -m benchmarks.rolling_restart [--rounds N] [--clients N] [--drain-delay S]

Three servers with handlers/durable share one Redis, with the default lease, behind HAProxy with deploy/haproxy.cfg.
Each client takes one step after another in a sequence of its own, and sends a step again after a moment if it was
refused or the connection broke. Its pause is the time from the first request to the answer. Each answer is checked: a
step that is lost or counts twice is told. Needs haproxy and redis-server.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from tests.e2e.running_server import HANDLERS, RunningServer, model_folder
from tests.proxies import HAProxy, Proxy
from tests.redis_server import RedisServer

SERVERS = 3
#: Seconds between the answer to a step and the next one, and before a step is sent again.
STEP_PAUSE, RETRY_PAUSE = 0.05, 0.02
#: Seconds before and after each round.
CALM = 3.0
#: Seconds within which a step must be answered.
LIMIT = 60.0
#: The goal for the longest pause (seconds).
MOST_PAUSE = 1.0


@dataclass
class Pauses:
    """What the clients have seen: seconds for each step, and why requests had to be sent again."""

    seconds: list[float] = field(default_factory=list)
    again: Counter[str] = field(default_factory=Counter)
    #: Steps that had no answer, or another than the sum of all steps of their sequence; each ends its client.
    lost: list[str] = field(default_factory=list)


def main() -> int:
    """The command. Returns 1 if a step was lost or had no answer."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rolling_restart", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=3, help="how often all servers are restarted (default 3)")
    parser.add_argument("--clients", type=int, default=30, help="each with one sequence (default 30)")
    parser.add_argument("--drain-delay", type=int, default=4, help="drain_delay of the servers (default 4)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rolling-restart-")))
        redis = stack.enter_context(RedisServer(folder))
        model = durable(folder, redis.url)
        properties = {"drain_delay": options.drain_delay}
        servers = [stack.enter_context(RunningServer({"durable": model}, properties)) for _ in range(SERVERS)]
        for server in servers:
            server.wait_ready()
        proxy = stack.enter_context(HAProxy([server.inference for server in servers]))
        proxy.wait_for(SERVERS)
        pauses = asyncio.run(measure(proxy, servers, options.rounds, options.clients))
    report(pauses, options.rounds)
    return 1 if pauses.lost else 0


def durable(folder: Path, url: str) -> Path:
    """Return the folder of handlers/durable with its states in a Redis."""
    config = yaml.safe_load((HANDLERS / "durable" / "model-config.yaml").read_text())
    config["handler"]["cache"] = {"store": "redis", "url": url}
    handler = (HANDLERS / "durable" / "durable_handler.py").read_text()
    return model_folder(folder, "durable", handler, yaml.safe_dump(config))


async def measure(proxy: Proxy, servers: list[RunningServer], rounds: int, clients: int) -> Pauses:
    """Restart the servers in turn while clients step."""
    pauses, stopping = Pauses(), asyncio.Event()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(proxy.url, connector=connector) as session, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(take_steps(session, pauses, stopping))
        for _ in range(rounds):
            await asyncio.sleep(CALM)
            for server in servers:
                await asyncio.to_thread(server.terminate)
                await asyncio.to_thread(proxy.wait_for, SERVERS - 1)
                server.launch()
                await asyncio.to_thread(proxy.wait_for, SERVERS)
        await asyncio.sleep(CALM)
        stopping.set()
    return pauses


async def take_steps(session: aiohttp.ClientSession, pauses: Pauses, stopping: asyncio.Event) -> None:
    """Take one step after another in a sequence."""
    sequence, token, number = uuid.uuid4().hex, uuid.uuid4().hex, 0
    while not stopping.is_set():
        number += 1
        headers = {
            **{"ts_request_sequence_id": sequence, "ts_request_sequence_token": token, "ts_request_step": str(number)},
            "content-type": "text/plain",
        }
        began = time.perf_counter()
        while (total := await ask(session, headers, pauses)) is None:
            if time.perf_counter() > began + LIMIT:
                pauses.lost.append(f"step {number} had no answer within {LIMIT:g} s")
                return
            await asyncio.sleep(RETRY_PAUSE)
        pauses.seconds.append(time.perf_counter() - began)
        if total != number:
            pauses.lost.append(f"step {number} was answered with the total {total}")
            return
        await asyncio.sleep(STEP_PAUSE)


async def ask(session: aiohttp.ClientSession, headers: dict[str, str], pauses: Pauses) -> int | None:
    """Send a step that adds 1; return the total, None if there is none yet."""
    limit = aiohttp.ClientTimeout(total=LIMIT)
    try:
        async with session.post("/predictions/durable", data=b"1", headers=headers, timeout=limit) as answer:
            text = await answer.text()
            if answer.status == 200:
                return int(text)
            pauses.again[f"{answer.status} {answer.headers.get('ts-error-cause', 'by the proxy')}"] += 1
    except (aiohttp.ClientError, TimeoutError) as error:
        pauses.again[type(error).__name__] += 1
    return None


def report(pauses: Pauses, rounds: int) -> None:
    """Print the pauses, and why requests were sent again."""
    longest = max(pauses.seconds)
    verdict = "reached" if longest < MOST_PAUSE else "MISSED"
    median = statistics.median(pauses.seconds)
    p999 = statistics.quantiles(pauses.seconds, n=1000)[-1]
    print(f"{rounds} rolling restarts of {SERVERS} servers, {len(pauses.seconds):,} steps, {len(pauses.lost)} lost:")
    print(f"  a step's pause: median {1000 * median:.0f} ms, p99.9 {1000 * p999:.0f} ms")
    print(f"  longest {longest:.2f} s, goal {MOST_PAUSE:g} s: {verdict}")
    again = ", ".join(f"{count} × {what}" for what, count in pauses.again.most_common())
    print("\n".join([f"  requests that were sent again: {again or 'none'}", *pauses.lost]))


if __name__ == "__main__":
    sys.exit(main())
