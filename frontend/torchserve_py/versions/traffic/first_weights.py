"""The weights that the settings give versions: they count until somebody has shared out a model's requests.

A server that begins with a snapshot, or joins a fleet, has the weights of these. What neither tells of, and what is
registered later, gets its weight of the settings, as long as the other versions of the model still have theirs. Where
the settings say nothing of a model, its versions say it themselves, in their `model-config.yaml`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from typing import Final, Self

from torchserve_py.base.settings.table import Settings
from torchserve_py.core.serving.errors import ModelError, ModelNotFound
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.core.serving.weights import shared_out, weights_without
from torchserve_py.endpoints.management.management_calls import ManagementCalls
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.plugin_api import PluginUnavailable
from torchserve_py.versions.traffic.demanded_weights import demanded_weights, misfits, origin_of_weights
from torchserve_py.versions.traffic.traffic_keys import TrafficKeys
from torchserve_py.versions.traffic.traffic_settings import ModelWeights, TrafficSettings

logger = logging.getLogger(__name__)

_NOBODY: Final[Set[str]] = frozenset()


class FirstWeights:
    """The weights that a server's settings give versions."""

    @classmethod
    def of(cls, context: EndpointContext) -> Self:
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
        #: What the settings have come to last, by model.
        self._last: dict[str, Mapping[str, int]] = {}
        #: The models whose requests somebody has shared out since.
        self._taken: set[str] = set()
        calls.followers.append(self._follow)

    def give(self) -> None:
        """Give the versions that are registered when the server starts their weights.

        Raises PluginUnavailable: those of `traffic` do not fit them.
        """
        names = {model.name for model in self._serving.models()}
        weighted = self._first.keys() | {each for each in names if any(map(_own_weight, self._serving.versions(each)))}
        if not weighted:
            return
        earlier = self._serving.restored
        told = {(saved.name, saved.version) for saved in earlier.models if saved.weight is not None} if earlier else ()
        demanded = demanded_weights(self._settings, earlier)
        self._insist(demanded)
        for name in weighted - {each.name for each in demanded}:
            had = {version for version in self._versions(name) if (name, version) in told}
            self._last[name] = self._weights_of(name, had)
            if (weights := self._due(name)) is not None:
                try:
                    self._serving.set_weights(name, weights, force=True)
                except ModelError as error:
                    _warn(error)

    def _insist(self, demanded: Sequence[ModelWeights]) -> None:
        served = {each.name: self._versions(each.name) for each in demanded}
        problems = list(misfits(self._settings, demanded, served))
        if problems and self._serving.not_loaded:
            problems.append("the log says why what is to be loaded is not")
        if problems:
            raise PluginUnavailable("; ".join(problems))
        for name in served:
            self._last[name] = self._first[name]
            try:
                self._serving.set_weights(name, self._first[name], force=True)
            except ModelError as error:
                raise PluginUnavailable(f"traffic ({origin_of_weights(self._settings)}): {error}") from error

    async def _follow(self, name: str) -> None:
        """Give the versions of a model their weights when one has come, is to go or has gone: a `FollowVersions`."""
        if not self._calls.is_held(name) and (weights := self._due(name)) is not None:
            try:
                await self._calls.set_weights(name, weights, insist=True)
            except ModelError as error:
                _warn(error)

    def _due(self, name: str) -> Mapping[str, int] | None:
        """Return the weights that a model is to get; None: they are not to change."""
        present = self._versions(name)
        now = self._serving.weights(name) if present else {}
        last = self._last.get(name, {})
        if not present:
            self._taken.discard(name)
        elif now != weights_without(last, last.keys() - present, len(present)):
            self._taken.add(name)
        if name in self._taken:
            return None
        self._last[name] = weights = self._weights_of(name, present)
        return None if weights == now else weights

    def _weights_of(self, name: str, versions: Set[str]) -> Mapping[str, int]:
        """Return what these versions of a model are to have, if there were no others.

        One that is alone keeps its number of the settings: by that a restart sees that nobody has set another one.
        """
        if (first := self._first.get(name)) is not None:
            weights = {version: weight for version, weight in first.items() if version in versions}
            return shared_out(weights) if len(weights) > 1 else weights
        models = [model for model in self._serving.versions(name) if model.version in versions] if versions else []
        weights = {model.version: weight for model in models if (weight := _own_weight(model))}
        left = 100 - sum(weights.values())
        default = self._serving.get(name).version if weights else ""
        if default in versions and default not in weights and left > 0:
            weights[default] = left
        if len(weights) > 1 and sum(weights.values()) == 100:
            return weights
        if len(weights) > 1:
            named = ", ".join(f"{version}: {weight}" for version, weight in weights.items())
            _warn(f"those of model {name} ({named}) do not add up to 100, and none is left for its default version")
        return {}

    def _versions(self, name: str) -> Set[str]:
        """Return the versions of a model that are not being unregistered."""
        try:
            versions = self._serving.versions(name)
            return {model.version for model in versions if not self._serving.status(model).is_leaving}
        except ModelNotFound:
            return _NOBODY


def _own_weight(model: ServedModel) -> int | None:
    return model.config.plugin_keys.of(TrafficKeys).traffic_weight


def _warn(error: ModelError | str) -> None:
    logger.warning("Weights that versions are to have at first are not heeded: %s", error)
