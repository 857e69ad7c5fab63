"""The host's gauges."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.base.metrics.exposition import HOST, scrape

from torchserve_py.base.metrics.catalog import HOST_GAUGES
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.serving.usage import GpuUsage, Usage
from torchserve_py.ops.system_metrics.system import SystemMetrics, measure

DEADLINE = 60.0


def no_gpus() -> Sequence[GpuUsage]:
    return ()


def test_the_hosts_gauges_are_filled() -> None:
    metrics = ServerMetrics(HOST)
    SystemMetrics(metrics, no_gpus).collect([], Usage())
    found = scrape(metrics)
    host = {each.name: found[f"{each.name} Level=Host"] for each in HOST_GAUGES}
    assert 0 <= host["CPUUtilization"] <= 100
    assert 0 < host["MemoryUtilization"] <= 100
    assert 0 < host["DiskUtilization"] <= 100
    assert host["MemoryUsed"] > 1
    assert host["MemoryAvailable"] > 1
    assert host["DiskUsage"] > 0


def test_the_memory_of_living_processes_is_told() -> None:
    usage = Usage()
    SystemMetrics(ServerMetrics(HOST), no_gpus).collect([os.getpid(), -1, 2**22 + 1], usage)
    assert usage.worker_memory.keys() == {os.getpid()}
    assert usage.worker_memory[os.getpid()] > 1 << 20


def test_gpus_are_shown_one_by_one() -> None:
    metrics = ServerMetrics(HOST)
    usages = [GpuUsage(0, 17.0, 3.0, 678.0, 40680.0), GpuUsage(1, None, None, 5.0, None)]
    usage = Usage()
    SystemMetrics(metrics, lambda: usages).collect([], usage)
    assert {name: value for name, value in scrape(metrics).items() if name.startswith("GPU")} == {
        "GPUUtilization DeviceId=0 Level=Host": 17,
        "GPUMemoryUsed DeviceId=0 Level=Host": 678,
        "GPUMemoryUtilization DeviceId=0 Level=Host": 100 * 678 / 40680,
        "GPUMemoryUsed DeviceId=1 Level=Host": 5,
    }
    assert {index: str(gpu) for index, gpu in usage.gpus.items()} == {
        0: "gpuId::0 utilization.gpu [%]::17 % utilization.memory [%]::3 % memory.used [MiB]::678 MiB",
        1: "gpuId::1 utilization.gpu [%]::N/A % utilization.memory [%]::N/A % memory.used [MiB]::5 MiB",
    }


def test_a_host_without_gpus_is_asked_once() -> None:
    asked = []

    def read() -> Sequence[GpuUsage]:
        asked.append(1)
        return ()

    system = SystemMetrics(ServerMetrics(HOST), read)
    system.collect([], Usage())
    system.collect([], Usage())
    assert len(asked) == 1


def test_gpus_that_do_not_answer_for_a_while_are_asked_again() -> None:
    answers = iter([[GpuUsage(0, 1.0, 2.0, 3.0, 4.0)], [], [], [GpuUsage(0, 5.0, 6.0, 7.0, 8.0)]])
    metrics, usage = ServerMetrics(HOST), Usage()
    system = SystemMetrics(metrics, lambda: next(answers))
    for shown in ([0], [], [], [0]):
        system.collect([], usage)
        assert list(usage.gpus) == shown
    assert scrape(metrics)["GPUUtilization DeviceId=0 Level=Host"] == 5


def test_what_a_worker_has_started_counts_as_the_workers_gpu_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as engine:
        used = {os.getpid(): 1000, engine.pid: 200, 1: 7, 2**22 + 1: 8}
        usage = Usage()
        SystemMetrics(ServerMetrics(HOST), no_gpus, lambda: used).collect([os.getpid()], usage)
        assert usage.worker_gpu_memory == {os.getpid(): 1200}
        engine.communicate(b"\n")


async def test_system_metrics_go_on_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collected = asyncio.Event()
    loop = asyncio.get_running_loop()
    attempts = 0

    def collect(_: SystemMetrics, pids: Sequence[int], usage: Usage) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise PermissionError("not yours")
        loop.call_soon_threadsafe(collected.set)

    monkeypatch.setattr(SystemMetrics, "collect", collect)
    serving = SimpleNamespace(usage=Usage(), worker_pids=list, record_gpu_memory=lambda: None)
    own = SimpleNamespace(disable_system_metrics=False, metric_time_interval=0, system_metrics_cmd=None)
    settings = SimpleNamespace(of=lambda _: own)
    context: Any = SimpleNamespace(serving=serving, metrics=ServerMetrics(HOST), settings=settings)
    collecting = asyncio.create_task(measure(context))
    async with asyncio.timeout(DEADLINE):
        await collected.wait()
    collecting.cancel()
    assert "could not be collected" in caplog.text
