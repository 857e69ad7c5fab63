"""What is read from the errors of CUDA and of those that allocate memory."""

from collections.abc import Iterator

import pytest
import torch

from ts.jobs import device_loss
from ts.process.worker import load_failure

ASSERT = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported."
NOT_THERE = (
    "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are running on a"
    " CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU."
)


@pytest.fixture(autouse=True)
def usable() -> Iterator[None]:
    yield
    device_loss.loss.reason = ""


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("no matter what"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB."),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
    ],
)
def test_exhausted_memory(error: Exception) -> None:
    assert device_loss.memory_ran_out(error)
    assert device_loss.note_loss(error) == ""
    assert load_failure(error)[0] == 507


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(ASSERT),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: unspecified launch failure"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("HIP error: an illegal memory access was encountered"),
        RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0"),
    ],
)
def test_a_lost_device(error: Exception) -> None:
    assert not device_loss.memory_ran_out(error)
    assert str(error).partition("\n")[0] in device_loss.note_loss(error)
    assert load_failure(error)[0] == 500


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(NOT_THERE),
        RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
        RuntimeError("Torch not compiled with CUDA enabled"),
        ValueError("an unknown error of the chip"),
    ],
)
def test_neither(error: Exception) -> None:
    assert not device_loss.memory_ran_out(error)
    assert device_loss.note_loss(error) == ""
    assert load_failure(error) == (500, f"{type(error).__name__}: {error}")


def test_what_a_handler_raises_because_of_it_says_the_same() -> None:
    try:
        try:
            raise RuntimeError(ASSERT)
        except RuntimeError as error:
            raise ValueError("The labels are wrong") from error
    except ValueError as error:
        assert "device-side assert" in device_loss.note_loss(error)


def test_where_the_words_are_unknown_the_device_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: some error of tomorrow")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    assert device_loss.note_loss(RuntimeError("CUDA error: some error of tomorrow"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert not device_loss.note_loss(RuntimeError("CUDA error: invalid argument"))
