"""``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.ops.prometheus.metrics_door import MetricsDoor

    return [DoorOffer("metrics_address", MetricsDoor)]


PLUGIN = Plugin(name="prometheus", doors=_doors)
