"""MLServer's inference metrics of each model, under MLServer's names, for existing dashboards.

They are computed from other counters when they are scraped, and cost nothing per request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Instrument, Sample
from torchserve_py.metrics.outcomes import Outcomes

_NOTHING: Final = Outcomes()


class _Succeeded:
    kind: ClassVar[str] = "counter"
    suffixes: ClassVar[tuple[str, ...]] = ("",)

    def __init__(self) -> None:
        self.outcomes = _NOTHING

    def samples(self) -> Iterator[Sample]:
        yield Sample("", "", self.outcomes.succeeded)


class _Failed(_Succeeded):
    def samples(self) -> Iterator[Sample]:
        yield Sample("", "", self.outcomes.failed)


class _Took(_Succeeded):
    """MLServer has the time of what succeeded."""

    kind: ClassVar[str] = "summary"
    suffixes: ClassVar[tuple[str, ...]] = ("_count", "_sum")

    def samples(self) -> Iterator[Sample]:
        yield Sample("_count", "", self.outcomes.succeeded)
        yield Sample("_sum", "", self.outcomes.succeeded_seconds)


class MLServerMetrics:
    """The three families, with a series for each model version that is written for MLServer."""

    def __init__(self) -> None:
        self._families: tuple[Family[_Succeeded], ...] = (
            Family("model_infer_request_success_total", _Succeeded, "Count", "Model infer request success count"),
            Family("model_infer_request_failure_total", _Failed, "Count", "Model infer request failure count"),
            Family("model_infer_request_duration", _Took, "Seconds", "Model infer request duration"),
        )

    def show(self, name: str, version: str, outcomes: Outcomes) -> None:
        """From now on there are series of that model version."""
        for family in self._families:
            family.child({"model": name, "version": version}).outcomes = outcomes

    def forget(self, name: str, version: str) -> None:
        """From now on there are none."""
        for family in self._families:
            family.remove({"model": name, "version": version})

    @property
    def families(self) -> Sequence[Family[Instrument]]:
        """Those that have series."""
        return [family for family in self._families if not family.is_empty]
