"""The figures that are compared: for each, the model, the load, how its value is read, its rival, the ratio wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks import open_inference_loads as open_inference
from benchmarks import torchserve_loads as torchserve
from benchmarks import truss_loads as truss
from benchmarks.benchmark_models import BenchmarkModel
from benchmarks.loads import Load, LoadResult
from benchmarks.results import BARE_AIOHTTP, BARE_GRPC, MLSERVER, MOSEC, TORCHSERVE, TRUSS
from benchmarks.servers import Server


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One line of the comparison. `goal`: this server's value over the rival's; a lower limit, or an upper one."""

    name: str
    title: str
    unit: str
    goal: float
    higher_is_better: bool = True
    rival: str | None = TORCHSERVE


def _requests(result: LoadResult) -> float:
    return result.requests_per_second


def _chunks(result: LoadResult) -> float:
    return result.requests_per_second * torchserve.STREAM_CHUNKS


def _median(result: LoadResult) -> float:
    if result.median_ms is None:
        raise ValueError("this load tells no median")
    return result.median_ms


def _share_of_predict(result: LoadResult) -> float:
    return result.requests_per_second / truss.PREDICT_LIMIT


@dataclass(frozen=True, kw_only=True)
class LoadFigure(Figure):
    """Read from runs of a load against servers that stay up; with a yardstick, also against that bare application."""

    model: BenchmarkModel
    load: Load
    read: Callable[[LoadResult], float] = _requests
    yardstick: str | None = None
    goal_is_for_the_value: bool = False


@dataclass(frozen=True, kw_only=True)
class StartFigure(Figure):
    """Read from a server that has just been started and has answered its first prediction."""

    model: BenchmarkModel
    read: Callable[[Server], float]


@dataclass(frozen=True, kw_only=True)
class SchedulerFigure(Figure):
    """The scheduler alone. Others have nothing to put beside it: the goal is for the value itself."""


FIGURES: tuple[Figure, ...] = (
    LoadFigure(
        name="sequences", title="32 sequences, batches of 32", unit="steps/s", goal=3.0,
        model=torchserve.STATEFUL, load=torchserve.sequences(),
    ),
    LoadFigure(
        name="echo", title="echo, batch 1, 32 connections", unit="req/s", goal=5.0,
        model=torchserve.ECHO, load=torchserve.http(torchserve.ECHO, 32), yardstick=BARE_AIOHTTP,
    ),
    LoadFigure(
        name="echo-batches", title="echo, batches of 8, 32 connections", unit="req/s", goal=4.0,
        model=torchserve.ECHO_BATCHES, load=torchserve.http(torchserve.ECHO_BATCHES, 32),
    ),
    LoadFigure(
        name="latency", title="echo, 1 connection, median", unit="ms", goal=0.4, higher_is_better=False,
        model=torchserve.ECHO, load=torchserve.http(torchserve.ECHO, 1), read=_median, yardstick=BARE_AIOHTTP,
    ),
    LoadFigure(
        name="stream", title="stream of 100 chunks, 8 clients", unit="chunks/s", goal=4.0,
        model=torchserve.STREAM, load=torchserve.http(torchserve.STREAM, 8), read=_chunks,
    ),
    LoadFigure(
        name="megabyte", title="1 MB echo, 8 connections", unit="req/s", goal=2.5,
        model=torchserve.ECHO, load=torchserve.http(torchserve.ECHO, 8, b"x" * torchserve.MEBIBYTE),
    ),
    LoadFigure(
        name="grpc", title="gRPC echo, batch 1, 32 calls", unit="calls/s", goal=3.0,
        model=torchserve.ECHO, load=torchserve.predictions(torchserve.ECHO, 32), yardstick=BARE_GRPC,
    ),
    LoadFigure(
        name="grpc-batches", title="gRPC echo, batches of 8, 32 calls", unit="calls/s", goal=1.0,
        model=torchserve.ECHO_BATCHES, load=torchserve.predictions(torchserve.ECHO_BATCHES, 32),
    ),
    LoadFigure(
        name="grpc-stream", title="gRPC stream of 100 messages, 8 clients", unit="messages/s", goal=2.0,
        model=torchserve.STREAM, load=torchserve.stream_predictions(8), read=_chunks, yardstick=BARE_GRPC,
    ),
    StartFigure(
        name="memory", title="memory of server and one torch-free worker", unit="MB", goal=0.3, higher_is_better=False,
        model=torchserve.ECHO, read=lambda server: server.memory() / 1e6,
    ),
    StartFigure(
        name="start", title="start to first prediction", unit="s", goal=0.35, higher_is_better=False,
        model=torchserve.ECHO, read=lambda server: server.start_seconds,
    ),
    LoadFigure(
        name="mosec-echo", title="echo, batch 1, 32 connections", unit="req/s", goal=0.95, rival=MOSEC,
        model=torchserve.ECHO, load=torchserve.http(torchserve.ECHO, 32),
    ),
    LoadFigure(
        name="mosec-batches", title="echo, batches of 8, 32 connections", unit="req/s", goal=0.85, rival=MOSEC,
        model=torchserve.ECHO_BATCHES, load=torchserve.http(torchserve.ECHO_BATCHES, 32),
    ),
    LoadFigure(
        name="infer", title="REST infer, a small BYTES tensor, 32 connections", unit="req/s", goal=4.0, rival=MLSERVER,
        model=open_inference.ECHO, load=open_inference.infer(),
    ),
    LoadFigure(
        name="infer-megabyte", title="REST infer, 1 MB of FP32 as JSON, 4 connections", unit="req/s", goal=1.0,
        rival=MLSERVER, model=open_inference.ECHO, load=open_inference.infer_megabyte(),
    ),
    LoadFigure(
        name="model-infer", title="gRPC ModelInfer, a small BYTES tensor, 32 calls", unit="calls/s", goal=1.0,
        rival=MLSERVER, model=open_inference.ECHO, load=open_inference.model_infer(),
    ),
    LoadFigure(
        name="model-infer-megabyte", title="gRPC ModelInfer, 1 MB of FP32 raw, 8 calls", unit="calls/s", goal=1.0,
        rival=MLSERVER, model=open_inference.ECHO, load=open_inference.model_infer_megabyte(),
    ),
    LoadFigure(
        name="model-stream-infer", title="gRPC ModelStreamInfer, 100 responses, 8 clients", unit="messages/s", goal=1.0,
        rival=MLSERVER, model=open_inference.ECHO, load=open_inference.model_stream_infer(), read=_chunks,
    ),
    LoadFigure(
        name="truss", title="an async predict that returns its input, 32 connections", unit="req/s", goal=4.0,
        rival=TRUSS, model=truss.ECHO, load=truss.predict(32),
    ),
    LoadFigure(
        name="truss-stages", title="50 ms before a predict of 10 ms: share of what predict allows", unit="×", goal=0.95,
        rival=TRUSS, model=truss.STAGES, load=truss.predict(32), read=_share_of_predict, goal_is_for_the_value=True,
    ),
    SchedulerFigure(
        name="scheduler", title="cost of a step with 100,000 open sequences against 100", unit="×", goal=1.3,
        higher_is_better=False, rival=None,
    ),
)  # fmt: skip
