"""The key of `model-config.yaml` with which workers follow the load."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import ClosedSchema, key
from torchserve_py.base.settings.schemas.values import Nested, choice, integer

_SCALING = Nested("a map, for example {targetWaitMSec: 500}, or {}")


class ScalingConfig(ClosedSchema):
    """The `scaling` map: when the number of workers follows the load."""

    target_wait_ms: Annotated[int, integer(1, unit="milliseconds")] = key(
        "targetWaitMSec", "how long a request may wait before workers are added", "1,000", otherwise=1000
    )
    down_after: Annotated[int, integer(1, unit="seconds")] = key(
        "downAfterSec", "how long fewer workers must have sufficed before some are removed", "60", otherwise=60
    )
    idle_timeout: Annotated[int, integer(1, unit="seconds")] = key(
        "idleTimeoutSec",
        "with `minWorkers: 0`: after how long without a request the last worker is removed",
        "300",
        otherwise=300,
    )


class ScalingKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has two keys."""

    loading: Annotated[Literal["at_start", "on_demand"], choice("at_start", "on_demand")] = key(
        "loading",
        "`on_demand`: [no worker before the first request](scaling.md#models-that-load-on-the-first-request); needs"
        " `minWorkers: 0`",
        "at_start",
        otherwise="at_start",
    )
    scaling: Annotated[ScalingConfig | None, _SCALING] = key(
        "scaling",
        "the number of workers [follows the load](scaling.md) between `minWorkers` and `maxWorkers`",
        "none: there are `minWorkers` until they are scaled",
    )

    @property
    def follows_load(self) -> bool:
        """Whether the number of workers follows the load."""
        return self.scaling is not None or self.loading == "on_demand"

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield the keys that leave nothing to follow."""
        if self.loading == "on_demand" and given.get("minWorkers") != 0:
            yield (
                ("loading", "minWorkers"),
                "loading is on_demand but minWorkers is not 0; set minWorkers: 0, or take loading out",
            )
        if self.follows_load and given.get("useJobTicket") is True:
            name = "loading" if self.scaling is None else "scaling"
            yield (
                (name, "useJobTicket"),
                f"{name} is set but useJobTicket is true; then no request waits, and nothing tells how many workers"
                " are needed, so keep one of the two",
            )

    def doubts(self, given: Mapping[Any, Any]) -> Iterable[str]:
        """Yield a warning if the limits are equal."""
        least, most = given.get("minWorkers"), given.get("maxWorkers") or 0
        if self.scaling is not None and isinstance(least, int) and isinstance(most, int) and 0 < least >= most:
            yield f"scaling has no effect because maxWorkers is not more than minWorkers, which is {least}"
