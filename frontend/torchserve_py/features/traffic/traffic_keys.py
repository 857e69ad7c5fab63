"""The key of `model-config.yaml` for what compares the answers of a shadow."""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final

from torchserve_py.settings.schemas.plugin_keys import ModelConfigKeys
from torchserve_py.settings.schemas.schema import key
from torchserve_py.settings.schemas.values import Expected

_FUNCTION: Final = re.compile(r"[^\W\d]\w*\.py:[^\W\d]\w*")
_NAMED: Final = Expected(
    "a function in a file of the model's folder, for example comparison.py:are_same",
    lambda value: isinstance(value, str) and _FUNCTION.fullmatch(value) is not None,
)


class TrafficKeys(ModelConfigKeys):
    """`model-config.yaml`, of which this feature has one key."""

    handlers_only: ClassVar[str] = "a shadow's worker calls it beside the handler"
    prepares: ClassVar[str] = "ts.features.traffic.compared_answers"

    compare_answers: Annotated[str | None, _NAMED] = key(
        "compareAnswers",
        "the function that compares answers when the version is a [shadow](traffic.md#what-is-the-same)",
        "byte by byte",
    )

    def contradictions(self, given: Mapping[Any, Any]) -> Iterable[tuple[tuple[str, ...], str]]:
        """Yield that a comparison cannot join a batch which goes on step by step."""
        if self.compare_answers and given.get("continuousBatching"):
            problem = "compareAnswers is set but so is continuousBatching, which has no call for a comparison alone"
            yield ("compareAnswers", "continuousBatching"), f"{problem}; compare with a tolerance, or leave one out"

    def for_worker(self, batch_size: int) -> Any:
        """Return the function that workers call."""
        return self.compare_answers
