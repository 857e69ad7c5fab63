"""``/models/{model}/traffic`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import BackgroundOffer, DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.features.traffic.shadow_door import ShadowDoor
    from torchserve_py.features.traffic.traffic_door import TrafficDoor

    return [DoorOffer("management_address", TrafficDoor), DoorOffer("management_address", ShadowDoor)]


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.features.traffic.canaries import judge_canaries

    return [BackgroundOffer("judging canaries", judge_canaries)]


PLUGIN = Plugin(name="traffic", needs=("management",), doors=_doors, background=_background)
