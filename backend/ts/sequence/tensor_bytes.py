"""torch's tensors as plain parts and back: every type and layout whose values are all that a tensor is."""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from ts.jobs.device_copies import to_host
from ts.protocol.frames import Buffer
from ts.sequence.state_error import StateError

#: The layouts with one compressed dimension, and the names of their two kinds of indices.
_COMPRESSED: Final = {
    torch.sparse_csr: ("csr", "crow_indices", "col_indices"),
    torch.sparse_csc: ("csc", "ccol_indices", "row_indices"),
    torch.sparse_bsr: ("bsr", "crow_indices", "col_indices"),
    torch.sparse_bsc: ("bsc", "ccol_indices", "row_indices"),
}
#: Integers by their bytes.
_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_LAYOUTS: Final = {name: layout for layout, (name, _, _) in _COMPRESSED.items()}


class TensorParts(NamedTuple):
    """A dense tensor; ``type`` is the name that torch has for its type, and what is read may be in pieces."""

    raw: bytearray | bytes | Sequence[Buffer]
    device: str
    type: str
    shape: Sequence[int]


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether this is a dense tensor of no subclass, without gradients."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested or tensor.is_meta)
        and not _is_named(tensor)
    )


def parts_of(tensor: torch.Tensor) -> TensorParts:
    """Return the parts of a plain tensor."""
    host = to_host(tensor).resolve_conj().resolve_neg()
    # Types with few kernels can be viewed, but not always copied.
    real = torch.view_as_real(host) if host.is_complex() else host.view(_INTEGERS[host.itemsize])
    flat = real.contiguous().reshape(-1)
    raw: bytearray | bytes = b""
    if flat.nbytes:
        raw = bytearray(flat.nbytes)
        torch.frombuffer(raw, dtype=torch.uint8).copy_(flat.view(torch.uint8))
    return TensorParts(raw, tensor.device.type, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def tensor_of(parts: TensorParts, gpu_id: int | None) -> torch.Tensor:
    """Return a tensor, which was on a GPU on that of this worker. Raises ValueError: the parts do not fit together."""
    raw, device, name, shape = parts
    dtype = getattr(torch, name, None)
    content = bytearray(raw) if isinstance(raw, bytearray | bytes) else bytearray().join(raw)
    if not isinstance(dtype, torch.dtype) or len(content) != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{len(content)} bytes are no tensor of type {name} and shape {list(shape)}")
    flat = torch.frombuffer(content, dtype=torch.uint8).view(dtype) if content else torch.empty(0, dtype=dtype)
    tensor = flat.reshape(tuple(shape))
    return tensor if device == "cpu" or gpu_id is None else tensor.to(f"{device}:{gpu_id}")


def special_parts(tensor: torch.Tensor, place: str) -> list[Any]:
    """Return what `special_of` makes any other tensor of. Raises StateError: it cannot be stored."""
    kind = type(tensor)
    if kind not in (torch.Tensor, torch.nn.Parameter):
        raise StateError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored: keep a plain tensor, or pass"
            " encoders={the class: (encode, decode)} to SequenceCache"
        )
    if tensor.grad_fn is not None:
        raise StateError(
            f"{place} is a tensor that was computed with gradients, which cannot be stored: compute it in"
            " torch.inference_mode(), or keep its detach()"
        )
    if kind is torch.nn.Parameter:
        return ["parameter", tensor.detach(), tensor.requires_grad, tensor.grad]
    if tensor.requires_grad:
        return ["leaf", tensor.detach(), tensor.grad]
    if not _is_named(tensor) and tensor.layout is torch.sparse_coo:
        return ["coo", tensor._indices(), tensor._values(), list(tensor.shape), tensor.is_coalesced()]
    if not _is_named(tensor) and tensor.layout in _COMPRESSED:
        name, compressed, plain = _COMPRESSED[tensor.layout]
        return [name, getattr(tensor, compressed)(), getattr(tensor, plain)(), tensor.values(), list(tensor.shape)]
    raise _refusal(tensor, place)


def _is_named(tensor: torch.Tensor) -> bool:
    """Whether its dimensions have names, as torch once had them."""
    return any(getattr(tensor, "names", ()))


def _refusal(tensor: torch.Tensor, place: str) -> StateError:
    what = "nested" if tensor.is_nested else "named" if _is_named(tensor) else f"on the device {tensor.device.type}"
    layout = f"of type {tensor.dtype} and layout {tensor.layout}, {what},"
    return StateError(f"{place} is a tensor {layout} which cannot be stored")


def special_of(form: str, *parts: Any) -> torch.Tensor:
    """Return the tensor of these parts. Raises ValueError: they are no tensor."""
    if form == "parameter":
        data, needs_gradients, gradient = parts
        parameter = torch.nn.Parameter(data, requires_grad=needs_gradients)
        parameter.grad = gradient
        return parameter
    if form == "leaf":
        data, gradient = parts
        data.requires_grad_()
        data.grad = gradient
        return data  # type: ignore[no-any-return]
    if form == "coo":
        indices, values, shape, is_coalesced = parts
        return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=is_coalesced, check_invariants=True)
    if form in _LAYOUTS:
        return torch.sparse_compressed_tensor(*parts, layout=_LAYOUTS[form], check_invariants=True)
    raise ValueError(f"tensors have no form {form!r}")
