"""Cares for the traffic of models: canaries are judged, and what runs goes on after a restart."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, Final, Self

from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.versions.traffic.canaries import Canaries
from torchserve_py.versions.traffic.shadows import Shadows
from torchserve_py.versions.traffic.traffic_body import SavedTraffic
from torchserve_py.versions.traffic.traffic_file import TrafficFile

logger = logging.getLogger(__name__)

_LOOK_INTERVAL: Final = 1.0


class TrafficCare:
    """The canaries and shadows of a server, with their file."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
        """Return that of a server."""
        made = cls(context.shared(Canaries.of), context.shared(Shadows.of), TrafficFile(context.settings))
        context.on_close.append(made.close)
        return made

    def __init__(self, canaries: Canaries, shadows: Shadows, file: TrafficFile) -> None:
        self.canaries = canaries
        self.shadows = shadows
        self._file = file
        self._saves = False

    def about(self, name: str) -> dict[str, Any]:
        """Return what is shown of a model's traffic: its canary, latest decisions and shadow, as far as there are."""
        shadow = self.shadows.about(name)
        return {**self.canaries.about(name), **({"shadow": shadow} if shadow else {})}

    async def save(self) -> None:
        """Write what runs now, if that has changed, while it is known what is to go on."""
        if self._saves:
            await self._file.write(SavedTraffic(canaries=self.canaries.saved(), shadows=self.shadows.saved()))

    async def resume(self) -> None:
        """Go on with what ran when the server stopped, as far as that is possible."""
        saved = await self._file.read()
        for name, canary in saved.canaries.items():
            self.canaries.resume(name, canary)
        for name, rules in saved.shadows.items():
            self.shadows.resume(name, rules)
        self._saves = True
        await self.save()

    def close(self) -> None:
        """End the shadows with the server; the file keeps them."""
        self._saves = False
        self.shadows.close()

    async def look(self) -> None:
        """End shadows that cannot go on, and judge each canary."""
        self.shadows.look()
        await self.canaries.look(time.monotonic())
        await self.save()


async def care_for_traffic(context: EndpointContext) -> None:
    """Care for the traffic of a server, until it stops."""
    care = context.shared(TrafficCare.of)
    await care.resume()
    while True:
        await asyncio.sleep(_LOOK_INTERVAL)
        try:
            await care.look()
        except Exception:  # the others are still to be judged
            logger.exception("Canaries could not be judged this time")
