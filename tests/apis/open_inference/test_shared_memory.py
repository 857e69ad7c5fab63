"""The regions of shared memory that clients register: what is refused, and what happens when objects change."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.apis.open_inference.shared_memory import MAX_REGIONS, RegionSlice, SharedMemory
from torchserve_py.endpoints.failures import EndpointError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "client_a").write_bytes(bytes(range(100)))
    (tmp_path / "other").write_bytes(b"secret")
    return tmp_path


@pytest.fixture
def memory(folder: Path) -> Iterator[SharedMemory]:
    made = SharedMemory(["client_*"], 1000, folder)
    yield made
    made.unregister()


def refusal(call: Any, *values: Any) -> str:
    with pytest.raises(EndpointError) as caught:
        call(*values)
    assert 400 <= caught.value.failure.status < 500
    return caught.value.failure.message


def test_without_the_setting_everything_is_refused_with_its_name(folder: Path) -> None:
    memory = SharedMemory([], 1000, folder)
    for call in (memory.status, memory.unregister, lambda: memory.register("r", "client_a", 0, 1)):
        with pytest.raises(EndpointError, match="shared_memory_keys") as caught:
            call()
        assert caught.value.failure.status == 501


def test_a_region_is_described_read_and_forgotten(memory: SharedMemory) -> None:
    memory.register("r", "/client_a", 10, 50)
    assert memory.status() == [{"name": "r", "key": "/client_a", "offset": 10, "byte_size": 50}]
    assert memory.status("r") == memory.status()
    assert memory.read(memory.place("x", "r", 5, 3)) == bytes((15, 16, 17))
    memory.write(RegionSlice("r", 0, 4), memoryview(b"abc"))
    assert memory.read(RegionSlice("r", 0, 4)) == b"abc\x0d"
    memory.unregister("r")
    memory.unregister("r")
    assert memory.status() == []
    assert "no shared memory region 'r'" in refusal(memory.read, RegionSlice("r", 0, 4))
    assert "no shared memory region 'r'" in refusal(memory.status, "r")


@pytest.mark.parametrize(
    "key",
    ["../client_a", "client_a/../other", "//client_a", "/", "", ".", "..", "client_a\0", "client_/etc", "client_" * 40],
)
def test_a_key_is_no_path(memory: SharedMemory, key: str) -> None:
    assert "The key of region 'r' must be the name" in refusal(memory.register, "r", key, 0, 1)


@pytest.mark.parametrize("key", [None, 7, ["client_a"]])
def test_a_key_is_a_text(memory: SharedMemory, key: Any) -> None:
    assert "The key of region 'r' must be the name" in refusal(memory.register, "r", key, 0, 1)


def test_only_allowed_keys_are_opened(memory: SharedMemory, folder: Path) -> None:
    assert "not allowed by the setting shared_memory_keys" in refusal(memory.register, "r", "other", 0, 1)
    (folder / "client_link").symlink_to(folder / "other")
    (folder / "client_folder").mkdir()
    os.mkfifo(folder / "client_pipe")
    assert "cannot be opened" in refusal(memory.register, "r", "client_link", 0, 1)
    assert "no shared memory object" in refusal(memory.register, "r", "client_folder", 0, 1)
    assert "no shared memory object" in refusal(memory.register, "r", "client_pipe", 0, 1)
    assert "cannot be opened" in refusal(memory.register, "r", "client_missing", 0, 1)
    assert memory.status() == []


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (-1, 10),
        (0, 0),
        (0, -1),
        (0, 101),
        (100, 1),
        (2**63, 1),
        (0, 2**64),
        (2**62, 2**62),
        (1.5, 1),
        (True, 1),
        ("0", 1),
        (0, None),
    ],
)
def test_a_region_is_within_its_object(memory: SharedMemory, offset: Any, size: Any) -> None:
    assert "region 'r'" in refusal(memory.register, "r", "client_a", offset, size)


@pytest.mark.parametrize("name", ["", "n" * 256, None, 5])
def test_a_name_is_a_short_text(memory: SharedMemory, name: Any) -> None:
    assert "name of a region" in refusal(memory.register, name, "client_a", 0, 1)


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 51), (50, 1), (-1, 2), (0, -1), (2**63 - 1, 2), (2**64, 1), (0, None), (0, 1.0), ("a", 1)]
)
def test_a_place_is_within_its_region(memory: SharedMemory, offset: Any, size: Any) -> None:
    memory.register("r", "client_a", 10, 50)
    assert "Input 'x'" in refusal(memory.place, "Input 'x'", "r", offset, size)


def test_a_name_is_used_once_and_the_number_of_regions_is_limited(memory: SharedMemory) -> None:
    memory.register("0", "client_a", 0, 1)
    assert "registered already" in refusal(memory.register, "0", "client_a", 0, 1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(1, MAX_REGIONS):
        memory.register(str(number), "client_a", 0, 1)
    assert "which is the most" in refusal(memory.register, "one more", "client_a", 0, 1)
    memory.unregister()
    assert len(list(Path("/proc/self/fd").iterdir())) < before
    memory.register("one more", "client_a", 0, 1)


def test_an_object_that_shrinks_is_an_error(memory: SharedMemory, folder: Path) -> None:
    memory.register("r", "client_a", 0, 100)
    place = memory.place("x", "r", 0, 100)
    os.truncate(folder / "client_a", 50)
    assert "has become shorter" in refusal(memory.read, place)
    assert "has become shorter" in refusal(memory.write, place, memoryview(bytes(100)))
    assert (folder / "client_a").stat().st_size == 50


def test_a_region_that_was_registered_anew_is_not_left(memory: SharedMemory) -> None:
    memory.register("r", "client_a", 0, 100)
    place = memory.place("x", "r", 50, 50)
    memory.unregister("r")
    memory.register("r", "client_a", 0, 60)
    assert "registered again" in refusal(memory.read, place)
    assert "registered again" in refusal(memory.write, place, memoryview(bytes(50)))


def test_an_output_that_is_larger_than_its_place_is_refused(memory: SharedMemory) -> None:
    memory.register("r", "client_a", 0, 100)
    assert "has 5 bytes; its place in region 'r' has 4" in refusal(
        memory.write, RegionSlice("r", 0, 4), memoryview(b"12345")
    )


def test_the_inputs_of_a_request_are_limited_together(memory: SharedMemory) -> None:
    memory.register("r", "client_a", 0, 100)
    places = [memory.place("x", "r", 0, 100)] * 11
    assert "have 1100 bytes; max_request_size is 1000" in refusal(memory.check_total, places)
