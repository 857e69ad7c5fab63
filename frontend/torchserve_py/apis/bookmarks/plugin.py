"""``/sequences/{model}/{id}`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import EndpointsOffer, Plugin


def _endpoints() -> Iterable[EndpointsOffer]:
    from torchserve_py.apis.bookmarks.bookmarks_endpoints import BookmarksEndpoints

    return [EndpointsOffer("management_address", BookmarksEndpoints)]


PLUGIN = Plugin(name="bookmarks", endpoints=_endpoints)
