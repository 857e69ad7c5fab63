"""Puts planned sessions on one server and returns its report."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Mapping
from contextlib import suppress

from benchmarks.sessions.load import Sessions
from benchmarks.sessions.plan import Offered, sessions_of
from benchmarks.sessions.process_cost import Processes
from benchmarks.sessions.protocols import PROTOCOLS
from benchmarks.sessions.report import Report, report_of


async def measure(
    name: str,
    protocol: str,
    url: str,
    headers: Mapping[str, str],
    offered: Offered,
    patience: float = 10.0,
    processes: Processes | None = None,
    kill_every: float = 0.0,
) -> Report:
    """Put a load on a server and return the report."""
    client = PROTOCOLS[protocol](url, headers)
    before = processes.seconds() if processes else 0.0
    beside = [] if processes is None else [asyncio.create_task(processes.watch())]
    if processes and kill_every:
        beside.append(asyncio.create_task(processes.kill(kill_every, random.Random(offered.seed))))
    try:
        results = await Sessions(client, secrets.token_hex(4), patience).run(sessions_of(offered))
    finally:
        for task in beside:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await client.close()
    spent = processes.seconds() - before if processes else 0.0
    return report_of(name, results, offered.period, spent, processes.killed if processes else 0)
