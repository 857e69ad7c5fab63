"""The key of `model-config.yaml` that says that a handler can sleep."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.settings.schemas.schema import key
from torchserve_py.settings.schemas.values import FLAG

#: The keys of models that have no call of the handler which is a batch alone, or that need more than one process.
_OTHERS = ("continuousBatching", "asyncCommunication", "parallelLevel")


class SleepingKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this feature has one key."""

    handlers_only: ClassVar[str] = "its code has no sleep and wake"
    prepares: ClassVar[str] = "ts.features.sleeping.sleeper"

    sleep: Annotated[bool, FLAG] = key(
        "sleep",
        "where memory of its GPU is needed, the handler [sleeps](memory-budget.md#sleep) instead of being unloaded",
        "false",
        otherwise=False,
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the keys with which no handler can sleep."""
        for other in _OTHERS if self.sleep else ():
            if given.get(other):
                problem = f"sleep is true but {other} is set, too; only a handler of one process that gets batches"
                yield ("sleep", other), f"{problem} can sleep: leave one out"
        scaling = given.get("scaling")
        if self.sleep and isinstance(scaling, Mapping) and scaling.get("idleTimeoutSec"):
            problem = "sleep is true but scaling.idleTimeoutSec is set, too, which unloads what does nothing"
            yield ("sleep", "scaling"), f"{problem}: leave one out"

    def doubts(self, given: Mapping[Any, Any]) -> Iterable[str]:
        """Yield a warning for what only matters to models that the server itself loads and unloads."""
        if self.sleep and given.get("minWorkers") != 0:
            yield "sleep has no effect because minWorkers is not 0, so that the model never makes room"

    def for_worker(self, batch_size: int) -> Any:
        """Return True if the handler is to be able to sleep."""
        return self.sleep or None
