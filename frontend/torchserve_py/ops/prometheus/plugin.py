"""``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.ops.prometheus.metrics_endpoints import MetricsEndpoints

    return [EndpointsOffer("metrics_address", MetricsEndpoints)]


PLUGIN = Plugin(name="prometheus", endpoints=_endpoints)
