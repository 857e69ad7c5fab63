"""What the traffic of a server is when it starts."""

from collections.abc import Iterable

from torchserve_py.endpoints.routing import EndpointContext, Endpoints, Route
from torchserve_py.versions.traffic.first_weights import FirstWeights
from torchserve_py.versions.traffic.stickiness import STICKY_BY
from torchserve_py.versions.traffic.traffic_settings import TrafficSettings


class TrafficStart(Endpoints):
    """Has no paths. It is made before the server listens, so that the first request finds the weights as they are.

    Raises PluginUnavailable: the weights that the server is started with cannot be given.
    """

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        context.serving.sticky_by = STICKY_BY[self.settings.of(TrafficSettings).sticky_traffic]
        context.shared(FirstWeights.of)

    def routes(self) -> Iterable[Route]:
        """Return none."""
        return ()
