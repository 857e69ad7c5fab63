"""Which of the host's GPUs a server may use: those that `CUDA_VISIBLE_DEVICES` names."""

import os
import re
from collections.abc import Sequence
from typing import Final

from torchserve_py.base.settings.table import Settings
from torchserve_py.core.gpus.nvidia_smi import Gpu, list_gpus
from torchserve_py.core.workers.devices import Device, Devices

_LEADING_NUMBER: Final = re.compile(r"[+-]?\d+")


def devices(settings: Settings) -> Devices:
    """Return what a server may use. Blocks until nvidia-smi has answered."""
    gpus = list_gpus()
    visible = visible_devices(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"), settings.number_of_gpu)
    return Devices(visible, hide_others=bool(gpus))


def visible_devices(gpus: Sequence[Gpu], variable: str | None, limit: int | None = None) -> tuple[Device, ...]:
    """The devices that this server may use.

    gpus: what the host has; variable: the value of CUDA_VISIBLE_DEVICES, None if it is not set; limit: number_of_gpu.

    Reads the variable as CUDA and torch do: numbers or UUIDs (or unambiguous beginnings of them), the kind of the first
    holding for all; the first entry that is negative, unreadable or names no device ends the list; a device named twice
    makes it empty. A GPU that is divided counts as its MIG instances.
    """
    if variable is None:
        devices = tuple(device for gpu in gpus for device in _devices_of(gpu, str(gpu.index)))
    else:
        devices = _named_devices(gpus, variable)
    return devices if limit is None else devices[: max(0, limit)]


def _devices_of(gpu: Gpu, token: str) -> list[Device]:
    if gpu.mig_uuids:
        return [Device(uuid, gpu.index, is_mig=True) for uuid in gpu.mig_uuids]
    return [Device(token, gpu.index)]


def _named_devices(gpus: Sequence[Gpu], variable: str) -> tuple[Device, ...]:
    names = [name.strip() for name in variable.split(",")]
    kind = names[0][:4]
    found = _by_uuid(gpus, names, kind) if kind in ("GPU-", "MIG-") else _by_number(gpus, names)
    return tuple(found) if len(set(found)) == len(found) else ()


def _by_number(gpus: Sequence[Gpu], names: list[str]) -> list[Device]:
    numbers: list[int] = []
    for name in names:
        leading = _LEADING_NUMBER.match(name)
        if leading is None or int(leading[0]) < 0:
            break
        if int(leading[0]) in numbers:
            return []
        numbers.append(int(leading[0]))
    found: list[Device] = []
    for number in numbers:
        if number >= len(gpus):
            break
        found += _devices_of(gpus[number], str(number))
    return found


def _by_uuid(gpus: Sequence[Gpu], names: list[str], prefix: str) -> list[Device]:
    if prefix == "GPU-":
        known = {gpu.uuid: _devices_of(gpu, gpu.uuid) for gpu in gpus}
    else:
        known = {uuid: [Device(uuid, gpu.index, is_mig=True)] for gpu in gpus for uuid in gpu.mig_uuids}
    found: list[Device] = []
    for name in names:
        matches = [uuid for uuid in known if name.startswith(prefix) and len(name) > 4 and uuid.startswith(name)]
        if len(matches) != 1:
            break
        found += known[matches[0]]
    return found
