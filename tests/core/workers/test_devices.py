"""Which device a worker gets, as a table."""

import pytest

from torchserve_py.core.gpus.nvidia_smi import Gpu
from torchserve_py.core.gpus.visible_devices import visible_devices
from torchserve_py.core.workers.devices import (
    Device,
    DeviceAssignment,
    Devices,
    UnsuitableDevices,
)

A, B, C, D = "GPU-aa11", "GPU-aa22", "GPU-cc33", "GPU-dd44"
HOST = tuple(Gpu(index, uuid) for index, uuid in enumerate((A, B, C, D)))
M1, M2, M3 = "MIG-11", "MIG-12", "MIG-23"
DIVIDED = (Gpu(0, A, (M1, M2)), Gpu(1, B), Gpu(2, C, (M3,)))


@pytest.mark.parametrize(
    ("variable", "limit", "tokens"),
    [
        (None, None, ["0", "1", "2", "3"]),
        (None, 2, ["0", "1"]),
        (None, 0, []),
        (None, 9, ["0", "1", "2", "3"]),
        ("0,1,2,3", None, ["0", "1", "2", "3"]),
        ("2,0", None, ["2", "0"]),
        (" 2 , 0 ", None, ["2", "0"]),
        ("2,0,1", 2, ["2", "0"]),
        ("3", None, ["3"]),
        ("", None, []),
        ("  ", None, []),
        ("NoDevFiles", None, []),
        ("-1", None, []),
        ("none", None, []),
        ("void", None, []),
        ("1,-1,2", None, ["1"]),
        ("1,,2", None, ["1"]),
        ("0,1,", None, ["0", "1"]),
        ("1gpu,2amp", None, ["1", "2"]),
        ("+1", None, ["1"]),
        ("1,7,2", None, ["1"]),
        ("7", None, []),
        ("1,1", None, []),
        ("0,1,0", None, []),
        ("1,-1,1", None, ["1"]),
        (A, None, [A]),
        (f"{D},{A}", None, [D, A]),
        (f"{D}, {A}", None, [D, A]),
        ("GPU-c", None, [C]),
        ("GPU-cc,GPU-dd4", None, [C, D]),
        ("GPU-aa", None, []),
        (f"{C},GPU-aa,{D}", None, [C]),
        ("GPU-", None, []),
        (f"{A},{A}", None, []),
        (f"{C},GPU-cc", None, []),
        ("GPU-ffff", None, []),
        (f"{A},GPU-ffff,{B}", None, [A]),
        (f"{A},1", None, [A]),
        (f"1,{A}", None, ["1"]),
        (f"{A},{B},{C}", 1, [A]),
        (M1, None, []),
    ],
)
def test_visible_devices(variable: str | None, limit: int | None, tokens: list[str]) -> None:
    assert [device.token for device in visible_devices(HOST, variable, limit)] == tokens


@pytest.mark.parametrize(
    ("variable", "devices"),
    [
        (None, [(M1, 0), (M2, 0), ("1", 1), (M3, 2)]),
        ("0", [(M1, 0), (M2, 0)]),
        ("1,2", [("1", 1), (M3, 2)]),
        (f"{M3},{M1}", [(M3, 2), (M1, 0)]),
        ("MIG-2", [(M3, 2)]),
        ("MIG-1", []),
        (f"{M1},{M1}", []),
        (f"{M1},{B}", [(M1, 0)]),
        (f"{A}", [(M1, 0), (M2, 0)]),
        ("MIG-99", []),
    ],
)
def test_a_divided_gpu_counts_as_its_instances(variable: str | None, devices: list[tuple[str, int]]) -> None:
    assert [(device.token, device.gpu_index) for device in visible_devices(DIVIDED, variable)] == devices


@pytest.mark.parametrize("variable", [None, "0", "", A, "MIG-1"])
def test_a_host_without_gpus_has_none(variable: str | None) -> None:
    assert visible_devices((), variable) == ()


def devices(count: int) -> Devices:
    return Devices(visible_devices(tuple(Gpu(n, f"GPU-{n}") for n in range(count)), None))


@pytest.mark.parametrize(
    ("gpus", "device_type", "device_ids", "level", "visible"),
    [
        (4, "gpu", None, 0, ["1", "2", "3", "0", "1"]),
        (1, "gpu", None, 0, ["0", "0"]),
        (2, "gpu", None, 0, ["1", "0", "1"]),
        (0, "gpu", None, 0, [None, None]),
        (4, "cpu", None, 0, ["", ""]),
        (0, "cpu", None, 0, [None]),
        (0, "gpu", [3], 2, [None]),
        (4, "gpu", [2, 3], 0, ["2", "3", "2"]),
        (4, "gpu", [3], 0, ["3", "3"]),
        (4, "gpu", [1, 1, 0], 0, ["1", "1", "0", "1"]),
        (4, "cpu", [2, 3], 0, [""]),
    ],
)
def test_plain_workers(
    gpus: int, device_type: str, device_ids: list[int] | None, level: int, visible: list[str | None]
) -> None:
    model = devices(gpus).for_model(device_type, device_ids, level)  # type: ignore[arg-type]
    handed_out = [model.next() for _ in visible]
    assert [each.visible for each in handed_out] == visible
    assert [each.gpu_id for each in handed_out] == [0 if each else None for each in visible]


@pytest.mark.parametrize(
    ("gpus", "device_ids", "level", "groups"),
    [
        (4, None, 2, ["0,1", "2,3", "0,1"]),
        (4, None, 4, ["0,1,2,3", "0,1,2,3"]),
        (4, None, 1, ["0", "1", "2", "3", "0"]),
        (5, None, 2, ["0,1", "2,3", "4,0", "1,2"]),
        (4, [3, 1, 0], 2, ["3,1", "0,3", "1,0"]),
        (4, [2, 3], 2, ["2,3", "2,3"]),
    ],
)
def test_parallel_workers(gpus: int, device_ids: list[int] | None, level: int, groups: list[str]) -> None:
    model = devices(gpus).for_model("gpu", device_ids, level)
    handed_out = [model.next() for _ in groups]
    assert [each.visible for each in handed_out] == groups
    assert [each.gpu_id for each in handed_out] == [0] * len(groups)
    assert [len(each.devices) for each in handed_out] == [level] * len(groups)


def test_models_share_one_round_robin() -> None:
    pool = devices(3)
    first, second = pool.for_model("gpu", None, 0), pool.for_model("gpu", None, 0)
    fixed = pool.for_model("gpu", [0, 1], 0)
    order = [first, second, fixed, first, second, fixed]
    assert [model.next().visible for model in order] == ["1", "2", "0", "0", "1", "1"]


def test_groups_are_counted_per_model() -> None:
    pool = devices(4)
    first, second = pool.for_model("gpu", None, 2), pool.for_model("gpu", None, 2)
    assert [model.next().visible for model in (first, second, first)] == ["0,1", "0,1", "2,3"]


def test_numbers_are_positions_in_cuda_visible_devices() -> None:
    pool = Devices(visible_devices(HOST, f"{D},{B},{A}"))
    assert pool.count == 3
    assert pool.for_model("gpu", [0], 0).next() == DeviceAssignment(0, D, (Device(D, 3),))
    assert pool.for_model("gpu", None, 2).next().visible == f"{D},{B}"


def test_a_worker_on_an_instance_sees_nothing_else() -> None:
    model = Devices(visible_devices(DIVIDED, None)).for_model("gpu", None, 0)
    handed_out = [model.next() for _ in range(4)]
    assert [each.visible for each in handed_out] == [M2, "1", M3, M1]
    assert [each.gpu_id for each in handed_out] == [0, 0, 0, 0]


def test_workers_on_the_cpu_see_no_gpu() -> None:
    unused = Devices(visible_devices(HOST, None, limit=0), hide_others=True)
    for each in (devices(4), unused):
        assert each.for_model("cpu", None, 0).next().environment["CUDA_VISIBLE_DEVICES"] == ""


def test_without_gpus_that_the_server_knows_of_the_environment_stays() -> None:
    assert devices(0).for_model("gpu", None, 0).next().environment == {}


def test_a_worker_counts_as_nvidia_smi_does() -> None:
    environment = devices(4).for_model("gpu", [3], 0).next().environment
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "3"}


def test_a_worker_is_not_spread_over_instances() -> None:
    with pytest.raises(UnsuitableDevices, match="cannot be spread over MIG instances"):
        Devices(visible_devices(DIVIDED, None)).for_model("gpu", None, 2)


@pytest.mark.parametrize(
    ("device_ids", "level", "before", "given_back", "after"),
    [
        (None, 0, ["1", "2", "0"], 1, ["2", "0"]),
        ([0, 2], 0, ["0", "2"], 0, ["0", "2"]),
        (None, 2, ["0,1", "2,0", "1,2"], 0, ["0,1"]),
    ],
)
def test_a_device_that_was_given_back_goes_before_those_with_more_users(
    device_ids: list[int] | None, level: int, before: list[str], given_back: int, after: list[str]
) -> None:
    model = devices(3).for_model("gpu", device_ids, level)
    handed_out = [model.next() for _ in before]
    assert [each.visible for each in handed_out] == before
    model.give_back(handed_out[given_back])
    assert [model.next().visible for _ in after] == after
