"""Memory that the server has freed goes back to the system."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings


def _around(settings: Settings) -> AbstractContextManager[None]:
    from torchserve_py.ops.freed_memory.freed_memory import share_one_arena

    share_one_arena()
    return nullcontext()


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.ops.freed_memory.freed_memory import give_back_freed_memory

    return [BackgroundOffer("giving back freed memory", give_back_freed_memory)]


PLUGIN = Plugin(name="freed_memory", around=_around, background=_background)
