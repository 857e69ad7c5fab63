"""The type of numbers in which a model of PyTorch's computes: its inputs are converted to that of its weights.

Clients send whole numbers as such, and FP64 where their language has no other; a model takes one type. Whole numbers
stay whole for a module that looks something up by them: one with an embedding.
"""

from typing import Any

import torch

_EMBEDDINGS = ("Embedding", "EmbeddingBag")


def looks_up(module: torch.nn.Module) -> bool:
    """Return whether a module, eager, scripted or exported, looks something up by whole numbers."""
    if any(getattr(each, "original_name", type(each).__name__) in _EMBEDDINGS for each in module.modules()):
        return True
    graph = getattr(module, "graph", None) if isinstance(module, torch.fx.GraphModule) else None
    return graph is not None and any("embedding" in str(node.target) for node in graph.nodes)


def type_of_weights(module: torch.nn.Module) -> torch.dtype | None:
    """Return the type of a module's first weights of floating point; None if it has none."""
    return next((each.dtype for each in module.parameters() if each.is_floating_point()), None)


def in_type(tensor: torch.Tensor, dtype: torch.dtype | None, *, keeps_integers: bool) -> torch.Tensor:
    """Return numbers in ``dtype``, if there is one; truth values as they are, whole numbers too if they are kept."""
    is_number = tensor.is_floating_point() or not (keeps_integers or tensor.dtype is torch.bool or tensor.is_complex())
    return tensor.to(dtype) if is_number and dtype is not None else tensor


def in_type_of_weights(module: Any, data: Any) -> Any:
    """Return the inputs of a model, a tensor or a list of some, in the type of its weights; None if they are that."""
    if not isinstance(module, torch.nn.Module):
        return None
    dtype, keeps_integers = type_of_weights(module) or torch.get_default_dtype(), looks_up(module)

    def converted(each: Any) -> Any:
        return in_type(each, dtype, keeps_integers=keeps_integers) if isinstance(each, torch.Tensor) else each

    given = data if isinstance(data, list) else [data]
    made = [converted(each) for each in given]
    if all(after is before for before, after in zip(given, made, strict=True)):
        return None
    return made if isinstance(data, list) else made[0]
