"""The page ``/docs``, and the OpenAPI document of the served models that it shows."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.tools.docs_page.docs_endpoints import DocsEndpoints

    return [EndpointsOffer("inference_address", DocsEndpoints)]


PLUGIN = Plugin(name="docs_page", endpoints=_endpoints)
