"""Paths of KServe V1, KServe V2 and Vertex AI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import SettingsSection


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.kserve.kserve_door import KServeDoor
    from torchserve_py.apis.kserve.v1_models_door import V1ModelsDoor

    return [DoorOffer("inference_address", KServeDoor), DoorOffer("inference_address", V1ModelsDoor)]


def _settings() -> type[SettingsSection]:
    from torchserve_py.apis.kserve.kserve_settings import KServeSettings

    return KServeSettings


PLUGIN = Plugin(name="kserve", doors=_doors, settings=_settings)
