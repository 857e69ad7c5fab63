"""Live sessions: sequences over WebSockets."""

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.live.live_session_endpoints import LiveSessionEndpoints

    return [EndpointsOffer("inference_address", LiveSessionEndpoints)]


PLUGIN = Plugin(name="live", endpoints=_endpoints)
