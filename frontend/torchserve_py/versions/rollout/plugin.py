"""``PUT /models/{model}/{version}/rollout`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.versions.rollout.rollout_endpoints import RolloutDoor

    return [EndpointsOffer("management_address", RolloutDoor)]


PLUGIN = Plugin(name="rollout", endpoints=_endpoints)
