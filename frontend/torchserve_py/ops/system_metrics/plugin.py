"""The host is measured: processors, memory, disk, GPUs, and the memory of each worker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.ops.system_metrics.system import measure

    return [BackgroundOffer("measuring the system", measure)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.system_metrics.system_settings import SystemSettings

    return SystemSettings


PLUGIN = Plugin(name="system_metrics", background=_background, settings=_settings)
