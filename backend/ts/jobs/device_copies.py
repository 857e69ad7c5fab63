"""Copies between the host's memory and a GPU's, and the stream that a handler computes on.

CUDA copies from and to pinned memory without a detour, and while the host goes on. torch keeps pinned memory that was
freed for the next copy, but not before the copies out of it are done.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import torch

#: A device as handlers name it; None leaves tensors where they are.
Device: TypeAlias = torch.device | str | int | None

#: Pinned memory of copies that a failing device has not done: to free it, torch would ask the device when these are
#: done, and abort the process on the error.
_never_freed: Final[list[torch.Tensor]] = []
_own_streams: Final[dict[torch.device, Any]] = {}


def stack_on(tensors: Sequence[torch.Tensor], device: Device) -> torch.Tensor:
    """Return tensors of one shape as one tensor on ``device``; for CUDA they are gathered in pinned memory."""
    first = tensors[0]
    if not _is_cuda(device) or any(each.is_cuda or each.dtype != first.dtype for each in tensors):
        return torch.stack(list(tensors)).to(device)
    pinned = torch.empty((len(tensors), *first.shape), dtype=first.dtype, pin_memory=True)
    torch.stack(list(tensors), out=pinned)
    return pinned.to(device, non_blocking=True)


def rows_on(rows: Any, device: Device) -> torch.Tensor:
    """Return a batch on ``device``: arrays or tensors of one shape and type, or what ``torch.as_tensor`` takes."""
    if isinstance(rows, list) and rows and all(map(_is_array, rows)):
        tensors = [torch.as_tensor(row) for row in rows]
        if len({(each.shape, each.dtype) for each in tensors}) == 1:
            return stack_on(tensors, device)
    return to_device(torch.as_tensor(rows), device)


def to_device(tensor: torch.Tensor, device: Device) -> torch.Tensor:
    """Return a tensor on ``device``; the host does not wait for a copy to CUDA."""
    return tensor.to(device, non_blocking=True) if _is_cuda(device) else tensor.to(device)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the host's memory, without its gradients; from CUDA it gets there by way of pinned memory."""
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    try:
        torch.cuda.current_stream(tensor.device).synchronize()
    except Exception:
        _never_freed.append(pinned)
        raise
    return pinned


def to_numpy(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array of numpy, which has no BF16: these values are float32."""
    tensor = to_host(tensor)
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def own_stream(device: torch.device) -> Any:
    """Return this process's own stream of a CUDA device, which waits for no other stream; None on other devices."""
    if device.type == "cuda" and device not in _own_streams:
        _own_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call,unused-ignore]
    return stream_in_use(device)


def stream_in_use(device: torch.device) -> Any:
    """Return the stream of `own_stream` if the handler has asked for it; otherwise None."""
    return _own_streams.get(device)


@contextlib.contextmanager
def computing_on(stream: Any) -> Iterator[None]:
    """Queue the body's GPU work on ``stream``, if there is one, between what the caller has queued and will queue.

    This also holds if the body raises: memory of the caller's stream that the body's kernels still use is not reused
    before they are done.
    """
    if stream is None:
        yield
        return
    callers = torch.cuda.current_stream(stream.device)
    stream.wait_stream(callers)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        callers.wait_stream(stream)


def _is_cuda(device: Device) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or hasattr(value, "__array_interface__")
