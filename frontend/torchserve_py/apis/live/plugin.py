"""Live sessions: sequences over WebSockets."""

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.live.live_session_door import LiveSessionDoor

    return [DoorOffer("inference_address", LiveSessionDoor)]


PLUGIN = Plugin(name="live", doors=_doors)
