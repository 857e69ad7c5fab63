"""The page ``/docs``, and the OpenAPI document of the served models that it shows."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.tools.docs_page.docs_door import DocsDoor

    return [DoorOffer("inference_address", DocsDoor)]


PLUGIN = Plugin(name="docs_page", doors=_doors)
