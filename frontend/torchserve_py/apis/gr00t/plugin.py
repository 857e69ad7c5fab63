"""Policies of robots, as GR00T's clients call them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import ListenerOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import SettingsSection


def _listeners() -> Iterable[ListenerOffer]:
    from torchserve_py.apis.gr00t.gr00t_start import start_gr00t

    return [start_gr00t]


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.gr00t.gr00t_settings import Gr00tSettings

    return Gr00tSettings


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.gr00t.gr00t_keys import Gr00tKeys

    return Gr00tKeys


PLUGIN = Plugin(
    name="gr00t",
    listeners=_listeners,
    settings=_settings,
    model_config=_model_config,
)
