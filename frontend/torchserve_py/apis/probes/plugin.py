"""``/ping``, ``/live`` and ``/ready``."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.probes.probes_door import ProbesDoor

    return [DoorOffer("inference_address", ProbesDoor)]


PLUGIN = Plugin(name="probes", doors=_doors)
