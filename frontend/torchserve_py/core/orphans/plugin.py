"""Processes that models leave behind are reaped, and killed when the server ends."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings


def _around(settings: Settings) -> AbstractContextManager[None]:
    from torchserve_py.core.orphans.orphans import orphans_adopted

    return orphans_adopted()


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.core.orphans.orphans import reap_orphans

    return [BackgroundOffer("reaping orphans", lambda context: reap_orphans())]


PLUGIN = Plugin(name="orphans", around=_around, background=_background)
