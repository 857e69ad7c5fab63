"""The management API over HTTP, and the drain of the server."""

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.endpoints.management.drain_door import DrainDoor
    from torchserve_py.endpoints.management.management_door import ManagementDoor

    return [DoorOffer("management_address", ManagementDoor), DoorOffer("management_address", DrainDoor)]


PLUGIN = Plugin(name="management", doors=_doors)
