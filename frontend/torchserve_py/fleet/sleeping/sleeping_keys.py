"""The key of `model-config.yaml` that says that a handler can sleep."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import FLAG

#: The keys of models whose handler does not only get batches, or has more than one process.
_OTHERS = ("continuousBatching", "asyncCommunication", "torchrun")
#: How one process may use several GPUs.
_ONE_PROCESS = (None, "", "custom")


class SleepingKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has one key."""

    handlers_only: ClassVar[str] = "its code has no sleep and wake"
    prepares: ClassVar[str] = "ts.fleet.sleeping.sleeper"

    sleep: Annotated[bool, FLAG] = key(
        "sleep",
        "the handler [sleeps](scaling.md#sleep) instead of being unloaded",
        "false",
        otherwise=False,
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the keys with which no handler can sleep."""
        if not self.sleep:
            return
        for other in _OTHERS:
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
        if self.sleep and given.get("minWorkers") != 0:
            yield "sleep has no effect because minWorkers is not 0, so that the model never makes room"
        elif self.sleep and given.get("pin"):
            yield "sleep has no effect because pin is true, so that the model never makes room"

    def for_worker(self, batch_size: int) -> Any:
        """Return True if the handler is to be able to sleep."""
        return self.sleep or None
