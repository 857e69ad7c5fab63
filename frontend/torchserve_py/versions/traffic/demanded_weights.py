"""The weights that a server must start with: those of the setting `traffic`, if nothing else says what is served.

A snapshot and a fleet say so. A flag or a variable overrides a snapshot, as it overrides every file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from torchserve_py.base.settings.table import Settings
from torchserve_py.core.serving.serving import Restored
from torchserve_py.versions.traffic.traffic_settings import ModelWeights, TrafficSettings

#: How the origins begin that override a file.
_STRONGER: Final = ("flag ", "environment variable ")


def demanded_weights(settings: Settings, earlier: Restored | None) -> Sequence[ModelWeights]:
    """Return the weights that must be given; ``earlier`` is what the server begins with."""
    is_alone = getattr(settings, "fleet_state", None) is None  # all servers of a fleet have what the fleet has
    is_stronger = is_alone and origin_of_weights(settings).startswith(_STRONGER)
    return settings.of(TrafficSettings).traffic if earlier is None or is_stronger else ()


def origin_of_weights(settings: Settings) -> str:
    """Return where `traffic` comes from, for people."""
    return settings.origins.get("traffic", "the settings")


def misfits(settings: Settings, demanded: Sequence[ModelWeights], served: Mapping[str, Set[str]]) -> Iterator[str]:
    """Yield a line for each model that is not among those that are ``served``, or lacks a version."""
    source = f"traffic ({origin_of_weights(settings)})"
    for each in demanded:
        present = served.get(each.name, set())
        missing = sorted(version for version, weight in each.weights.items() if weight and version not in present)
        if not present:
            yield f"{source} has weights for model {each.name}, which is not served"
        elif missing:
            there = ", ".join(sorted(present))
            yield f"{source} has a weight for version {missing[0]} of model {each.name}, which has {there}"
