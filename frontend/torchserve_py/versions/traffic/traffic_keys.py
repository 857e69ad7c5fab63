"""The keys of `model-config.yaml` for a version that shares requests, and for what compares its answers."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final

from torchserve_py.base.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.base.settings.schemas.schema import key
from torchserve_py.base.settings.schemas.values import Expected, integer

_FUNCTION: Final = re.compile(r"[^\W\d]\w*\.py:[^\W\d]\w*")
_NAMED: Final = Expected(
    "a function in a file of the model's folder, for example comparison.py:are_same",
    lambda value: isinstance(value, str) and _FUNCTION.fullmatch(value) is not None,
)


class TrafficKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this plugin has two keys."""

    prepares: ClassVar[str] = "ts.versions.traffic.compared_answers"

    compare_answers: Annotated[str | None, _NAMED] = key(
        "compareAnswers",
        "function that compares answers of the version as a [shadow](traffic.md#how-answers-are-compared)",
        "byte by byte",
    )

    traffic_weight: Annotated[int | None, integer(1, 100)] = key(
        "trafficWeight",
        "percent of the requests that the version gets [once registered](traffic.md#weights-at-the-start)",
        "none",
    )

    def of_handlers(self, given: Mapping[Any, Any]) -> Iterable[tuple[str, object, str]]:
        """Yield the function that compares answers, if it is set."""
        if self.compare_answers is not None:
            yield "compareAnswers", self.compare_answers, "a shadow's worker calls it beside the handler"

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield that a comparison cannot join a batch which goes on step by step."""
        if self.compare_answers and given.get("continuousBatching"):
            problem = "compareAnswers is set but so is continuousBatching, which has no call for a comparison alone"
            yield ("compareAnswers", "continuousBatching"), f"{problem}; compare with a tolerance, or leave one out"

    def for_worker(self, batch_size: int) -> Any:
        """Return the function that workers call."""
        return self.compare_answers
