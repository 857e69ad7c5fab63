"""The figures that are compared: for each, the model, the load, how its value is read, and the ratio that is wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.archives import ECHO_HANDLER, STATEFUL_HANDLER, STREAM_HANDLER, BenchmarkModel
from benchmarks.loads import Load, LoadResult
from benchmarks.servers import Server

STREAM_CHUNKS = 100
SEQUENCES = 32
MEBIBYTE = 1 << 20

ECHO = BenchmarkModel("echo", ECHO_HANDLER, {"batchSize": 1}, b"x", b"x")
ECHO_BATCHES = BenchmarkModel("echo", ECHO_HANDLER, {"batchSize": 8, "maxBatchDelay": 5}, b"x", b"x")
STREAM = BenchmarkModel("stream", STREAM_HANDLER, {"batchSize": 1}, b"x", b"token " * STREAM_CHUNKS)
STATEFUL = BenchmarkModel(
    "stateful",
    STATEFUL_HANDLER,
    {
        "batchSize": SEQUENCES,
        "maxBatchDelay": 5,  # ms; TorchServe is fastest with about this
        "sequenceBatching": True,
        "sequenceMaxIdleMSec": 300_000,
        "maxNumSequence": 2 * SEQUENCES,
        "maxSequenceJobQueueSize": 8,
    },
    b"2",
    b"2",
    {"ts_request_sequence_id": "first"},
)


@dataclass(frozen=True)
class Figure:
    """One line of the comparison. `goal`: this server's value over TorchServe's; a lower limit, or an upper one."""

    name: str
    title: str
    unit: str
    goal: float
    higher_is_better: bool


@dataclass(frozen=True)
class LoadFigure(Figure):
    """Read from runs of wrk against servers that stay up; with a yardstick, also against a bare aiohttp application."""

    model: BenchmarkModel
    load: Load
    read: Callable[[LoadResult], float]
    yardstick: bool = False


@dataclass(frozen=True)
class StartFigure(Figure):
    """Read from a server that has just been started and has answered its first prediction."""

    model: BenchmarkModel
    read: Callable[[Server], float]


@dataclass(frozen=True)
class SchedulerFigure(Figure):
    """The scheduler alone. TorchServe has nothing to put beside it: the goal is for the value itself."""


FIGURES: tuple[Figure, ...] = (
    LoadFigure(
        "echo", "echo, batch 1, 32 connections", "req/s", 4.0, True,
        ECHO, Load(32, "x"), lambda result: result.requests_per_second, yardstick=True,
    ),
    LoadFigure(
        "echo-batches", "echo, batches of 8, 32 connections", "req/s", 3.0, True,
        ECHO_BATCHES, Load(32, "x"), lambda result: result.requests_per_second,
    ),
    LoadFigure(
        "sequences", "32 sequences, batches of 32", "steps/s", 3.0, True,
        STATEFUL, Load(SEQUENCES, "2", sequences=True), lambda result: result.requests_per_second,
    ),
    LoadFigure(
        "latency", "echo, 1 connection, median", "ms", 0.4, False,
        ECHO, Load(1, "x"), lambda result: result.median_ms, yardstick=True,
    ),
    LoadFigure(
        "stream", "stream of 100 chunks, 8 clients", "chunks/s", 3.0, True,
        STREAM, Load(8, "x"), lambda result: result.requests_per_second * STREAM_CHUNKS,
    ),
    LoadFigure(
        "megabyte", "1 MB echo, 8 connections", "req/s", 2.0, True,
        ECHO, Load(8, "x", MEBIBYTE), lambda result: result.requests_per_second,
    ),
    StartFigure(
        "memory", "memory of server and one torch-free worker", "MB", 0.3, False,
        ECHO, lambda server: server.memory() / 1e6,
    ),
    StartFigure(
        "start", "start to first prediction", "s", 0.35, False,
        ECHO, lambda server: server.start_seconds,
    ),
    SchedulerFigure("scheduler", "cost of a step with 100,000 open sequences against 100", "×", 1.3, False),
)  # fmt: skip
