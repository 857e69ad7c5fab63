"""The settings about versions that share requests: their weights at the start, and who stays with one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from torchserve_py.base.settings.schemas.values import Parsed, choice
from torchserve_py.base.settings.table import DEFAULT_ORIGIN, Effective, SettingsSection, Source, setting


@dataclass(frozen=True)
class ModelWeights:
    """The weights of a model's versions, in percent."""

    name: str
    weights: Mapping[str, int]

    def __str__(self) -> str:
        """Return them as the setting writes them."""
        return f"{self.name}=" + ",".join(f"{version}:{weight}" for version, weight in self.weights.items())


def read_weights(text: str, _: Path = Path()) -> tuple[ModelWeights, ...]:
    """Read the value of `traffic`. Raises ValueError: what is wrong with it."""
    models: dict[str, dict[str, int]] = {}
    name = ""
    for item in filter(None, map(str.strip, text.split(","))):
        left, begins, rest = item.rpartition("=")
        if begins:
            name = left.strip()
            if name in models:
                raise ValueError(f"model {name} is named twice")
            models[name] = {}
        version, _colon, weight = (part.strip() for part in rest.rpartition(":"))
        if not name:
            raise ValueError(f"{item} stands before the name of a model")
        if not version:
            raise ValueError(f"{item} has no weight")
        if not (weight.isascii() and weight.isdecimal() and int(weight) <= 100):
            raise ValueError(f"the weight of version {version} of {name} is {weight or 'empty'}, not 0 to 100")
        if version in models[name]:
            raise ValueError(f"version {version} of {name} is named twice")
        models[name][version] = int(weight)
    for name, weights in models.items():
        if (total := sum(weights.values())) != 100:
            raise ValueError(f"the weights of {name} add up to {total}, not to 100")
    return tuple(ModelWeights(name, weights) for name, weights in models.items())


_WEIGHTS: Final = Parsed(
    "MODEL=VERSION:PERCENT,VERSION:PERCENT, the percents of a model adding up to 100; a further model follows a comma",
    read_weights,
)


class TrafficSettings(SettingsSection):
    """Which versions of a model get the requests that name none."""

    traffic: Annotated[
        tuple[ModelWeights, ...], _WEIGHTS, Source(flag="--traffic", metavar="MODEL=VERSION:PERCENT,...")
    ] = setting((), "[weights](traffic.md#weights) of versions at the start", "none")
    sticky_traffic: Annotated[Literal["user", "key", "client"], choice("user", "key", "client")] = setting(
        "user",
        "which requests without a sequence [stay with one version](traffic.md#sticky-versions)",
    )

    @classmethod
    def settle(cls, effective: MutableMapping[str, Effective]) -> Iterable[str]:
        """Drop the weights of a snapshot where the command line names other models than it has."""
        traffic, models, snapshot = (effective.get(name) for name in ("traffic", "load_models", "model_snapshot"))
        if not (traffic and traffic.value and models and models.origin.startswith("flag ")):
            return
        if snapshot and snapshot.value and _file_of(snapshot.origin) == _file_of(traffic.origin):
            effective["traffic"] = Effective((), DEFAULT_ORIGIN)
            yield f"{models.origin} says which models are loaded, so the weights of {traffic.origin} do not count"

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a line for each model that has weights in `models`, too."""
        traffic, models = effective.get("traffic"), effective.get("models")
        if not traffic or not models:
            return
        for each in traffic.value:
            if any(entry.weight for entry in models.value.get(each.name, {}).values()):
                places = f"{traffic.origin}: traffic, and {models.origin}: trafficWeight in models"
                yield f"Invalid configuration: model {each.name} has weights in two places, {places}; keep one of them"


def _file_of(origin: str) -> str:
    """Return the file of an origin ``file:line``, and any other origin as it is."""
    return origin.rpartition(":")[0] or origin
