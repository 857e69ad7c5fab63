"""The keys of `model-config.yaml` that say how a model shares the budget of memory, and whether it sleeps."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import FLAG, integer
from torchserve_py.fleet.memory_budget.sizes import SIZE

#: The keys of models whose handler does not only get batches, or has more than one process: it cannot sleep.
_WITHOUT_SLEEP = ("continuousBatching", "asyncCommunication", "torchrun")
#: How one process may use several GPUs.
_ONE_PROCESS = (None, "", "custom")


class BudgetKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has four keys."""

    prepares: ClassVar[str] = "ts.fleet.memory_budget.sleeper"

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
        "what a worker takes (of its GPU with a `gpu_memory_budget`)"
        " [until it is measured](scaling.md#how-memory-is-measured)",
        "the size of the model's files, and what a worker without a model takes",
    )
    sleep: Annotated[bool, FLAG] = key(
        "sleep",
        "the handler [sleeps](scaling.md#sleep) instead of being unloaded",
        "false",
        otherwise=False,
    )

    def of_handlers(self, given: Mapping[Any, Any]) -> Iterable[tuple[str, object, str]]:
        """Yield `sleep` if it is true: a model of another kind can have the other keys, but no methods for this one."""
        if self.sleep and "sleep" in given:
            yield "sleep", "true", "its code has no sleep and wake"

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the keys with which no handler can sleep."""
        if not self.sleep:
            return
        for other in _WITHOUT_SLEEP:
            if given.get(other):
                problem = f"sleep is true but {other} is set, too; only a handler of one process that gets batches"
                yield ("sleep", other), f"{problem} can sleep: leave one out"
        if (kind := given.get("parallelType")) not in _ONE_PROCESS:
            problem = f"sleep is true but parallelType is {kind}, with which a worker has several processes"
            yield ("sleep", "parallelType"), f"{problem}; use custom, or leave one out"
        most = given.get("maxWorkers")
        if isinstance(most, int) and most > 1:
            problem = f"sleep is true but maxWorkers is {most}; only a model with one worker can sleep"
            yield ("sleep", "maxWorkers"), f"{problem}: say 1, or leave sleep out"
        scaling = given.get("scaling")
        if isinstance(scaling, Mapping) and scaling.get("idleTimeoutSec"):
            problem = "sleep is true but scaling.idleTimeoutSec is set, too, which unloads what does nothing"
            yield ("sleep", "scaling"), f"{problem}: leave one out"

    def doubts(self, given: Mapping[Any, Any]) -> Iterable[str]:
        """Yield a warning for what only matters to models that the server itself loads and unloads."""
        never_makes_room = given.get("minWorkers") != 0
        for name in ("pin", "priority"):
            if name in given and never_makes_room:
                yield f"{name} has no effect because minWorkers is not 0, so the model is never unloaded"
        if self.sleep and never_makes_room:
            yield "sleep has no effect because minWorkers is not 0, so that the model never makes room"
        elif self.sleep and given.get("pin"):
            yield "sleep has no effect because pin is true, so that the model never makes room"

    def for_worker(self, batch_size: int) -> Any:
        """Return True if the handler is to be able to sleep."""
        return self.sleep or None
