"""What is asked of NVML, and what happens where it, or a GPU, has no answer; the library is a stand-in."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from torchserve_py.core.gpus import nvidia_smi
from torchserve_py.core.serving.usage import GpuUsage
from torchserve_py.ops.system_metrics import nvml

MEBIBYTE = 1 << 20


class NVMLError(Exception):
    pass


def failing(*_: Any) -> Any:
    raise NVMLError("Not Supported")


def library(**changes: Callable[..., Any]) -> Any:
    """Two GPUs of 80 GiB, on which the processes 11 and 12 compute."""
    processes = {"gpu0": [(11, 5 * MEBIBYTE), (12, None)], "gpu1": [(11, 2 * MEBIBYTE)]}

    def running(gpu: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in processes[gpu]]

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(gpu=17, memory=3),
        "nvmlDeviceGetMemoryInfo": lambda gpu: SimpleNamespace(used=678 * MEBIBYTE, total=81920 * MEBIBYTE),
        "nvmlDeviceGetComputeRunningProcesses": running,
        **changes,
    }
    return SimpleNamespace(NVMLError=NVMLError, **functions)


Install = Callable[[Any], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    def install(library: Any) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", library)
        nvml._library.cache_clear()

    yield install
    nvml._library.cache_clear()


def test_the_usage_of_each_gpu(install: Install) -> None:
    install(library())
    usage = (17.0, 3.0, 678.0, 81920.0)
    assert nvml.read_usage() == (GpuUsage(0, *usage), GpuUsage(1, *usage))


def test_the_memory_of_each_process_on_all_gpus(install: Install) -> None:
    install(library())
    assert nvml.memory_by_process() == {11: 7 * MEBIBYTE, 12: 0}


def test_a_gpu_that_does_not_tell_its_utilization_tells_its_memory(install: Install) -> None:
    install(library(nvmlDeviceGetUtilizationRates=failing))
    first, _ = nvml.read_usage()
    assert first == GpuUsage(0, None, None, 678.0, 81920.0)


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_without_an_answer_there_are_no_gpus(function: str, install: Install) -> None:
    install(library(**{function: failing}))
    assert nvml.read_usage() == ()
    assert nvml.memory_by_process() == {}


@pytest.mark.parametrize("installed", [None, library(nvmlInit=failing)])
def test_nvidia_smi_is_asked_where_nvml_is_not_installed_or_the_host_has_no_driver(
    installed: Any, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed)
    usages = (GpuUsage(0, 1.0, 2.0, 3.0, 4.0),)
    monkeypatch.setattr(nvidia_smi, "read_usage", lambda: usages)
    assert nvml.read_usage() == usages
    assert nvml.memory_by_process() == {}
