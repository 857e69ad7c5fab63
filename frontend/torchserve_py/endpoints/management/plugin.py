"""The management API over HTTP, and the drain of the server."""

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.endpoints.management.drain_endpoints import DrainDoor
    from torchserve_py.endpoints.management.management_endpoints import ManagementEndpoints

    return [EndpointsOffer("management_address", ManagementEndpoints), EndpointsOffer("management_address", DrainDoor)]


PLUGIN = Plugin(name="management", endpoints=_endpoints)
