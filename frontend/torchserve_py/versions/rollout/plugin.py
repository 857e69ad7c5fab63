"""``PUT /models/{model}/{version}/rollout`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.versions.rollout.rollout_door import RolloutDoor

    return [DoorOffer("management_address", RolloutDoor)]


PLUGIN = Plugin(name="rollout", doors=_doors)
