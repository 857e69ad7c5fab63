"""``/ping``, ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.probes.probes_endpoints import ProbesEndpoints

    return [EndpointsOffer("inference_address", ProbesEndpoints)]


PLUGIN = Plugin(name="probes", endpoints=_endpoints)
