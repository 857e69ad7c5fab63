"""The settings that limit the memory of all workers together."""

from collections.abc import Iterable, Mapping
from typing import Annotated

from torchserve_py.base.settings.table import Effective, SettingsSection, Source, setting
from torchserve_py.fleet.memory_budget.sizes import SIZE


class BudgetSettings(SettingsSection):
    """Budgets of memory."""

    memory_budget: Annotated[int | None, SIZE, Source(env_always=True)] = setting(
        None,
        "memory of this machine for [all workers together](scaling.md#more-models-than-memory)",
        "no limit",
    )
    gpu_memory_budget: Annotated[int | None, SIZE, Source(env_always=True)] = setting(
        None, "memory of each GPU for all workers together", "no limit"
    )

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a line for each budget of this machine while workers run on others."""
        launcher = effective.get("worker_launcher")
        if launcher is None or launcher.value == "local":
            return
        for name in cls.model_fields:
            if name in effective and effective[name].value is not None:
                yield (
                    f"Invalid configuration: {effective[name].origin} limits the memory of workers on this machine, but"
                    f" {launcher.origin} has them run on others; remove one of the two"
                )
