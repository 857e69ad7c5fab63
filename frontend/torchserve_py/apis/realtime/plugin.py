"""OpenAI's realtime API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import DoorOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.realtime.realtime_door import RealtimeDoor

    return [DoorOffer("inference_address", RealtimeDoor)]


def _model_config() -> type[ModelConfigKeys]:
    from torchserve_py.apis.realtime.realtime_keys import RealtimeKeys

    return RealtimeKeys


PLUGIN = Plugin(name="realtime", doors=_doors, model_config=_model_config)
