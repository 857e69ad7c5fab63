"""The weights that the settings give versions: they count until somebody has shared out a model's requests.

A server that begins with a snapshot, or joins a fleet, has the weights of these. What neither tells of, and what is
registered later, gets its weight of the settings, as long as the other versions of the model still have theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Final, Self

from torchserve_py.doors.routing import DoorContext
from torchserve_py.features.management.management_calls import ChangedVersion, ManagementCalls
from torchserve_py.features.traffic.demanded_weights import demanded_weights, misfits, origin_of_weights
from torchserve_py.features.traffic.traffic_settings import ModelWeights, TrafficSettings
from torchserve_py.plugin_api import FeatureUnavailable
from torchserve_py.plugins import restored
from torchserve_py.serving.errors import ModelError, ModelNotFound
from torchserve_py.serving.serving import Serving
from torchserve_py.settings.table import Settings

logger = logging.getLogger(__name__)

_NOBODY: Final[Set[str]] = frozenset()


class FirstWeights:
    """The weights that a server's settings give versions."""

    @classmethod
    def of(cls, context: DoorContext) -> Self:
        """Return those of a server, once the models that have been registered have theirs."""
        made = cls(context.settings, context.serving, context.shared(ManagementCalls.of))
        made.give()
        return made

    def __init__(self, settings: Settings, serving: Serving, calls: ManagementCalls) -> None:
        self._settings = settings
        self._serving = serving
        self._calls = calls
        #: By model and version.
        self._first: dict[str, Mapping[str, int]] = {}
        for name, versions in settings.models.items():
            if weights := {version: entry.weight for version, entry in versions.items() if entry.weight}:
                self._first[name] = weights
        for each in settings.of(TrafficSettings).traffic:
            self._first[each.name] = {version: weight for version, weight in each.weights.items() if weight}
        #: The versions that have had their turn, by model.
        self._known: dict[str, Set[str]] = {}
        if self._first:
            calls.followers.append(self._follow)

    def give(self) -> None:
        """Give the versions that are registered when the server starts their weights.

        Raises FeatureUnavailable: those of `traffic` do not fit them.
        """
        if not self._first:
            return
        earlier = restored(self._settings)
        told = {(saved.name, saved.version) for saved in earlier.models if saved.weight is not None} if earlier else ()
        demanded = demanded_weights(self._settings, earlier)
        self._insist(demanded)
        for name in self._first.keys() - {each.name for each in demanded}:
            self._known[name] = {version for version in self._versions(name) if (name, version) in told}
            if (weights := self._due(name)) is not None:
                try:
                    self._serving.set_weights(name, weights)
                except ModelError as error:
                    _warn(error)

    def _insist(self, demanded: Sequence[ModelWeights]) -> None:
        served = {each.name: self._versions(each.name) for each in demanded}
        problems = list(misfits(self._settings, demanded, served))
        if problems and self._serving.not_loaded:
            problems.append("the log says why what is to be loaded is not")
        if problems:
            raise FeatureUnavailable("; ".join(problems))
        for name, present in served.items():
            self._known[name] = present
            try:
                self._serving.set_weights(name, self._first[name])
            except ModelError as error:
                raise FeatureUnavailable(f"traffic ({origin_of_weights(self._settings)}): {error}") from error

    async def _follow(self, changed: ChangedVersion) -> None:
        """Give a version that has been registered its weight: a `FollowChange`."""
        if changed.name in self._first and (weights := self._due(changed.name)) is not None:
            try:
                await self._calls.set_weights(changed.name, weights)
            except ModelError as error:
                _warn(error)

    def _due(self, name: str) -> Mapping[str, int] | None:
        """Return the weights that a model is to get, and note that all of its versions have had their turn.

        None: they are not to change.
        """
        first, present = self._first[name], self._versions(name)
        known, self._known[name] = self._known.get(name, _NOBODY) & present, present
        now = self._serving.weights(name) if present else {}
        if any(now.get(version, 0) != first.get(version, 0) for version in known):
            return None
        weights = {version: weight for version, weight in first.items() if version in present}
        return None if weights == now else weights

    def _versions(self, name: str) -> Set[str]:
        try:
            return {model.version for model in self._serving.versions(name)}
        except ModelNotFound:
            return _NOBODY


def _warn(error: ModelError) -> None:
    logger.warning("Weights that versions are to have at first are not heeded: %s", error)
