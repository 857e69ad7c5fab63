"""The keys of `model-config.yaml` that say how a model shares the budget of memory."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import FLAG, integer
from torchserve_py.fleet.memory_budget.sizes import SIZE


class BudgetKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has three keys."""

    pin: Annotated[bool, FLAG] = key(
        "pin",
        "once loaded it stays, even if others [need the memory](scaling.md#more-models-than-memory)",
        "false",
        otherwise=False,
    )
    priority: Annotated[int, integer(-1000, 1000)] = key(
        "priority",
        "models of a lower priority are [unloaded](scaling.md#which-models-are-unloaded) first",
        "0",
        otherwise=0,
    )
    memory: Annotated[int | None, SIZE] = key(
        "memory",
        "what a worker takes (of its GPU with a `gpu_memory_budget`) [until it is measured](scaling.md#what-counts)",
        "the size of the model's files, and what a worker without a model takes",
    )

    def doubts(self, given: Mapping[Any, Any]) -> Iterable[str]:
        """Yield a warning for what only matters to models that the server itself loads and unloads."""
        for name in ("pin", "priority"):
            if name in given and given.get("minWorkers") != 0:
                yield f"{name} has no effect because minWorkers is not 0, so the model is never unloaded"
