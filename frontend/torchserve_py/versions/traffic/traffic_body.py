"""What ``PUT /models/{model}/traffic`` and ``…/traffic/shadow`` take, and what of it survives a restart."""

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, Field, ValidationError, model_validator

from torchserve_py.versions.traffic.canary import CanaryRules, ClosedBody

T = TypeVar("T", bound=BaseModel)


class TrafficBody(ClosedBody):
    """Weights of versions, in percent, or the rules of a canary."""

    weights: dict[str, Annotated[int, Field(ge=0, le=100)]] | None = Field(default=None, min_length=1, max_length=100)
    canary: CanaryRules | None = None

    @model_validator(mode="after")
    def _says_one(self) -> Self:
        if (self.weights is None) == (self.canary is None):
            raise ValueError("it must have weights or canary, and not both")
        if self.weights is not None and sum(self.weights.values()) != 100:
            raise ValueError(f"weights must add up to 100, and add up to {sum(self.weights.values())}")
        return self


class ShadowRules(ClosedBody):
    """The version that ``percent`` of the requests run on as well, while another one answers them.

    With a ``tolerance``, answers in JSON are the same if numbers differ by at most that, of 1 or of the larger one.
    """

    version: str = Field(min_length=1)
    percent: Annotated[float, Field(gt=0, le=100)] = 100
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None


class SavedCanary(ClosedBody):
    """The canary of a model: its rules, the version before it, and what was decided so far. Weights tell its step.

    ``began`` is in seconds since 1970.
    """

    rules: CanaryRules
    old: str
    began: float = 0.0
    decisions: list[dict[str, Any]] = Field(default=[], max_length=100)


class SavedTraffic(ClosedBody):
    """The canaries and shadows of a server, by the names of models."""

    canaries: dict[str, SavedCanary] = Field(default={})
    shadows: dict[str, ShadowRules] = Field(default={})


def read_body(body: Any) -> TrafficBody:
    """Read a decoded body. Raises ValueError with all that is wrong."""
    return _read(TrafficBody, body)


def read_shadow_rules(body: Any) -> ShadowRules:
    """Read a decoded body. Raises ValueError with all that is wrong."""
    return _read(ShadowRules, body)


def _read(schema: type[T], body: Any) -> T:
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        problems = (
            (".".join(map(str, each["loc"])), each["msg"].removeprefix("Value error, "), each["input"])
            for each in error.errors(include_url=False)
        )
        texts = [f"{place}: {text}, given {given!r:.60}" if place else text for place, text, given in problems]
        raise ValueError("; ".join(texts)) from None
