"""What ``PUT /models/{model}/traffic`` and ``…/traffic/shadow`` take, and what of it survives a restart."""

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

T = TypeVar("T", bound=BaseModel)
#: Percent of the requests.
Share = Annotated[int, Field(ge=1, le=100)]


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class CanaryRules(_Closed):
    """How a new version gets more and more of the requests, beside the default version.

    ``steps`` are its shares in percent, each for ``interval_sec`` seconds at least. It goes on once it has answered
    ``min_requests`` in that time, and is not worse in the last ``window_sec`` seconds: its share of failures is at most
    ``max_failure_increase`` higher, an answer takes on average at most ``max_latency_ratio`` times as long, and the
    time in which the share ``quantile`` of the answers comes is at most ``max_quantile_ratio`` times as long.
    """

    version: str = Field(min_length=1)
    steps: list[Share] = Field(default=[5, 25, 50], min_length=1, max_length=20)
    interval_sec: Annotated[int, Field(alias="intervalSec", ge=1, le=86_400)] = 60
    min_requests: Annotated[int, Field(alias="minRequests", ge=1, le=1_000_000)] = 20
    max_failure_increase: Annotated[float, Field(alias="maxFailureIncrease", ge=0, le=1)] = 0.01
    max_latency_ratio: Annotated[float, Field(alias="maxLatencyRatio", gt=0, le=1000)] = 1.5
    window_sec: Annotated[int, Field(alias="windowSec", ge=1, le=3600)] = 60
    quantile: Annotated[float, Field(ge=0.5, le=0.999)] = 0.99
    max_quantile_ratio: Annotated[float, Field(alias="maxQuantileRatio", gt=0, le=1000)] = 2

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if any(later <= earlier for earlier, later in zip(self.steps, self.steps[1:], strict=False)):
            raise ValueError(f"steps must rise, and are {self.steps}")
        return self


class TrafficBody(_Closed):
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


class ShadowRules(_Closed):
    """The version that ``percent`` of the requests run on as well, while another one answers them.

    With a ``tolerance``, answers in JSON are the same if numbers differ by at most that, of 1 or of the larger one.
    """

    version: str = Field(min_length=1)
    percent: Annotated[float, Field(gt=0, le=100)] = 100
    tolerance: Annotated[float, Field(ge=0, le=1)] | None = None


class SavedCanary(_Closed):
    """The canary of a model: its rules, the version before it, and what was decided so far. Weights tell its step."""

    rules: CanaryRules
    old: str
    decisions: list[dict[str, Any]] = Field(default=[], max_length=100)


class SavedTraffic(_Closed):
    """The canaries and shadows of a server, by the names of models."""

    canaries: dict[str, SavedCanary] = {}
    shadows: dict[str, ShadowRules] = {}


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
