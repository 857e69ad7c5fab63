"""What is asked of NVML, and what happens where it, or a GPU, has no answer; the library is a stand-in."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from torchserve_py.nvidia_smi import GpuUsage
from torchserve_py.nvml import Nvml, open_nvml

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


def test_the_usage_of_each_gpu() -> None:
    usage = (17.0, 3.0, 678.0, 81920.0)
    assert Nvml(library()).read_usage() == (GpuUsage(0, *usage), GpuUsage(1, *usage))


def test_the_memory_of_each_process_on_all_gpus() -> None:
    assert Nvml(library()).memory_by_process() == {11: 7 * MEBIBYTE, 12: 0}


def test_a_gpu_that_does_not_tell_its_utilization_tells_its_memory() -> None:
    first, _ = Nvml(library(nvmlDeviceGetUtilizationRates=failing)).read_usage()
    assert first == GpuUsage(0, None, None, 678.0, 81920.0)


@pytest.mark.parametrize("function", ["nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"])
def test_without_an_answer_there_are_no_gpus(function: str) -> None:
    nvml = Nvml(library(**{function: failing}))
    assert nvml.read_usage() == ()
    assert nvml.memory_by_process() == {}


@pytest.mark.parametrize(
    ("installed", "usable"), [(None, False), (library(nvmlInit=failing), False), (library(), True)]
)
def test_it_is_used_where_it_is_installed_and_the_host_has_a_driver(
    installed: Any, usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", installed)
    assert (open_nvml() is not None) is usable
