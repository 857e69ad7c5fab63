"""MLServer's inference metrics of each model, under MLServer's names, for existing dashboards.

They are computed from other counters when they are scraped, and cost nothing per request.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Instrument, Sample
from torchserve_py.base.metrics.model_metrics import Outcomes

#: By the suffixes of their samples.
Numbers: TypeAlias = Mapping[str, Callable[[Outcomes], float]]


class _Computed:
    """An instrument that shows numbers of a model's outcomes."""

    def __init__(self, kind: str, numbers: Numbers) -> None:
        self.kind = kind
        self.suffixes = tuple(numbers)
        self.outcomes = Outcomes()
        self._numbers = numbers

    def samples(self) -> Iterator[Sample]:
        for suffix, number in self._numbers.items():
            yield Sample(suffix, "", number(self.outcomes))


def _family(name: str, kind: str, help_end: str, numbers: Numbers) -> Family[_Computed]:
    return Family(name, lambda: _Computed(kind, numbers), "", f"Model infer request {help_end}")


class MLServerMetrics:
    """The three families, with a series for each model version that is written for MLServer; see `ModelFamilies`."""

    def __init__(self) -> None:
        succeeded: Numbers = {"": lambda outcomes: outcomes.succeeded}
        failed: Numbers = {"": lambda outcomes: outcomes.failed}
        # MLServer has the time of what succeeded.
        took: Numbers = {"_count": lambda each: each.succeeded, "_sum": lambda each: each.succeeded_seconds}
        self._families = (
            _family("model_infer_request_success_total", "counter", "success count", succeeded),
            _family("model_infer_request_failure_total", "counter", "failure count", failed),
            _family("model_infer_request_duration", "summary", "duration", took),
        )

    def show(self, name: str, version: str, outcomes: Outcomes) -> None:
        """Add the series of a model version."""
        for family in self._families:
            family.child({"model": name, "version": version}).outcomes = outcomes

    def forget(self, name: str, version: str) -> None:
        """Remove the series of a model version."""
        for family in self._families:
            family.remove({"model": name, "version": version})

    @property
    def families(self) -> Sequence[Family[Instrument]]:
        """The families that have series."""
        return [family for family in self._families if not family.is_empty]


def model_families() -> MLServerMetrics:
    """Return the families, without series."""
    return MLServerMetrics()
