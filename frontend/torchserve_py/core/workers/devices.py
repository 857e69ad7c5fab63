"""Which device a worker gets, and how many processors there are for workers.

The server numbers the devices that it may use 0 to n-1: those that `CUDA_VISIBLE_DEVICES` names, in its order, at most
`number_of_gpu` of them. `deviceIds` are such numbers. A worker sees its own devices and no other, whatever its
contract: its environment names them in `CUDA_VISIBLE_DEVICES`, in the order of nvidia-smi's numbers
(`CUDA_DEVICE_ORDER`). It counts them from 0, so 0 is the `gpu_id` of every worker that has a GPU.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a MIG instance of one. `token` names it in CUDA_VISIBLE_DEVICES, `gpu_index` is nvidia-smi's number."""

    token: str
    gpu_index: int
    is_mig: bool = False


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """What one worker gets."""

    gpu_id: int | None  # the first of its devices, as the worker counts them; None on a CPU
    visible: str | None = None  # what its environment must say in CUDA_VISIBLE_DEVICES; None = as inherited
    devices: tuple[Device, ...] = ()  # its devices, empty on a CPU

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the worker sees its devices and no other."""
        if self.visible is None:
            return {}
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": self.visible}


class UnsuitableDevices(ValueError):
    """The server has devices, but not as the model asks for them."""


class ModelDevices:
    """Gives each worker one of several assignments in turn; one with more users than others waits until it has not.

    assignments: at least one. first: the index of the one that comes first.
    """

    def __init__(self, assignments: Sequence[DeviceAssignment], first: int = 0) -> None:
        self._assignments = [*assignments[first:], *assignments[:first]]
        self._users = [0] * len(assignments)
        self._next = 0

    def next(self) -> DeviceAssignment:
        """Return what the next worker gets."""
        count = len(self._assignments)
        index = min(range(count), key=lambda index: (self._users[index], (index - self._next) % count))
        self._users[index] += 1
        self._next = index + 1
        return self._assignments[index]

    def give_back(self, assignment: DeviceAssignment) -> None:
        """Note that a worker is gone for good; of several equal assignments, the one with the most users loses one."""
        same = [index for index, each in enumerate(self._assignments) if each == assignment]
        self._users[max(same, key=lambda index: self._users[index])] -= 1


class Devices:
    """The devices of one server. Models that leave the choice to it share one round robin over all of them.

    devices: those that it may use. hide_others: whether the host has GPUs, which workers on the CPU must not see.
    """

    def __init__(self, devices: Sequence[Device], *, hide_others: bool = False) -> None:
        self._devices = tuple(devices)
        self._on_cpu = ModelDevices([DeviceAssignment(None, "" if devices or hide_others else None)])
        single = [_on_gpus((device,)) for device in devices]
        self._shared = ModelDevices(single, first=1 % self.count) if single else self._on_cpu

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self._devices)

    def for_model(
        self, device_type: Literal["cpu", "gpu"], device_ids: Sequence[int] | None, parallel_level: int
    ) -> ModelDevices:
        """Return the devices of one model version's workers.

        device_ids: the numbers to choose from, None for all. parallel_level: devices per worker, 0 for a plain worker;
        there are at least so many. Raises UnsuitableDevices.
        """
        if device_type == "cpu" or not self._devices:
            return self._on_cpu
        if device_ids is None and not parallel_level:  # as in TorchServe the first is number 1
            return self._shared
        chosen = [self._devices[number] for number in device_ids or range(self.count)]
        if parallel_level > 1 and any(device.is_mig for device in chosen):
            raise UnsuitableDevices("a worker cannot be spread over MIG instances: CUDA shows a process only one")
        size, count = parallel_level or 1, len(chosen)
        starts = [turn * size % count for turn in range(count // math.gcd(size, count))]
        groups = [tuple(chosen[(start + offset) % count] for offset in range(size)) for start in starts]
        return ModelDevices([_on_gpus(group) for group in groups])


def _on_gpus(devices: tuple[Device, ...]) -> DeviceAssignment:
    """Return the assignment of a worker on GPUs, which counts them from 0."""
    return DeviceAssignment(0, ",".join(device.token for device in devices), devices)


def available_processors(cgroup: Path = _CGROUP) -> int:
    """At least 1: the processors that this process may run on, or the container's share of time if that is less."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, processors if quota is None else min(processors, math.ceil(quota)))


def _quota(cgroup: Path) -> float | None:
    """Processor seconds per second that the control group (version 2, else 1) is limited to."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        try:
            fields = " ".join((cgroup / file).read_text() for file in files).split()
        except OSError:
            continue
        if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]):
            return int(fields[0]) / int(fields[1])
    return None
