"""Models share a budget of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.memory_budget.budget_settings import BudgetSettings

    return BudgetSettings


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.fleet.memory_budget.budget_keys import BudgetKeys

    return BudgetKeys


PLUGIN = Plugin(
    name="memory_budget",
    settings=_settings,
    model_config=_model_config,
)
