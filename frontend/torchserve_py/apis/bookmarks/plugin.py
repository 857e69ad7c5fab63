"""``/sequences/{model}/{id}`` of the management API."""

from __future__ import annotations

from collections.abc import Iterable

from torchserve_py.plugin_api import DoorOffer, Plugin


def _doors() -> Iterable[DoorOffer]:
    from torchserve_py.apis.bookmarks.bookmarks_door import BookmarksDoor

    return [DoorOffer("management_address", BookmarksDoor)]


PLUGIN = Plugin(name="bookmarks", doors=_doors)
