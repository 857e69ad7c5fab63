"""Workers on the nodes of a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import LauncherOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
    from torchserve_py.base.settings.table import SettingsSection


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.fleet.ray.ray_keys import RayKeys

    return RayKeys


def _settings() -> type[SettingsSection]:
    from torchserve_py.fleet.ray.ray_settings import RaySettings

    return RaySettings


PLUGIN = Plugin(
    name="ray",
    model_config=_model_config,
    launchers={
        "ray": LauncherOffer(
            "torchserve_py.fleet.ray.ray_launcher", "on the nodes of a [Ray cluster](kubernetes.md#ray)", "ray"
        )
    },
    settings=_settings,
)
