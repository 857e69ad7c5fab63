"""`metrics.yaml` (the setting `metrics_config`): which metrics there are, in TorchServe's form.

    ts_metrics:                       # of the server; the last dimension is the host's name
      counter: [{name: Requests2XX, unit: Count, dimensions: [Level, Hostname]}]
    model_metrics:                    # of handlers; the dimension Hostname is added
      gauge: [{name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}]

Where a file is configured, only what it lists exists. TorchServe runs without any metrics when the file is wrong; here
that is an error which keeps the server from starting.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from torchserve_py.base.metrics.catalog import KINDS, MODEL_METRICS, SERVER_METRICS, Declaration
from torchserve_py.base.metrics.families import metric_name
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError, MetricsPlan
from torchserve_py.base.settings.schemas.schema import ClosedSchema, read
from torchserve_py.base.settings.schemas.values import NAME, Expected, Listed, Nested
from torchserve_py.base.settings.schemas.yaml_mapping import UnreadableYaml, read_yaml_mapping

_SECTION = Nested(f"a map with {', '.join(KINDS)}")


def _are_different(names: list[Any]) -> bool:
    return all(isinstance(name, str) and name.strip() for name in names) and len(set(names)) == len(names)


class ListedMetric(ClosedSchema):
    """One metric of a list."""

    name: Annotated[str, NAME]
    unit: Annotated[str, NAME]
    dimensions: Annotated[
        tuple[str, ...],
        Expected("a list of names, each once", lambda value: isinstance(value, list) and _are_different(value)),
    ] = ()


_Listed = Annotated[ListedMetric, Nested("a map with name, unit and dimensions")]
_Metrics = Annotated[tuple[_Listed, ...], Listed("a list of metrics")]


class Section(ClosedSchema):
    """The metrics of the server, or those of handlers."""

    counter: _Metrics = ()
    gauge: _Metrics = ()
    histogram: _Metrics = ()

    def declarations(self) -> Iterator[Declaration]:
        """The metrics of all kinds."""
        for kind in KINDS:
            for metric in getattr(self, kind):
                yield Declaration(metric.name, kind, metric.unit, metric.dimensions)


class MetricsFile(ClosedSchema):
    """`metrics.yaml`."""

    dimensions: Any = Field(None, description="a place for YAML anchors; not read")
    ts_metrics: Annotated[Section, _SECTION] = Field(Section(), description="the metrics of the server")
    model_metrics: Annotated[Section, _SECTION] = Field(Section(), description="the metrics of handlers")


def read_metrics_config(path: Path) -> MetricsPlan:
    """Return the plan with the metrics that a file lists, and no others.

    Raises MetricsConfigError, with all problems, where the file is wrong or cannot be read.
    """
    try:
        mapping = read_yaml_mapping(path)
    except UnreadableYaml as error:
        raise MetricsConfigError(str(error)) from None
    except OSError as error:
        raise MetricsConfigError(f"it cannot be read: {error}") from None
    if not mapping.values:
        raise MetricsConfigError("it must be a mapping with ts_metrics and model_metrics")
    file, wrong = read(MetricsFile, mapping.values, lines=mapping.lines)
    server, model = list(file.ts_metrics.declarations()), list(file.model_metrics.declarations())
    problems = [*wrong.values(), *_equal_names([*server, *model])]
    for each in server:
        own = SERVER_METRICS.get(each.name)
        if own is not None and each.kind != own.kind:
            problems.append(f"ts_metrics lists {each.name} as a {each.kind}; the server has a {own.kind}")
        problems += _dimension_problems("ts_metrics", each, own)
    for each in model:
        problems += _dimension_problems("model_metrics", each, MODEL_METRICS.get(each.name))
        if "Hostname" in each.dimensions:
            problems.append(f"model_metrics, {each.name}: the dimension Hostname is added and must not be listed")
    if problems:
        raise MetricsConfigError("; ".join(problems))
    return MetricsPlan({each.name: each for each in server}, {each.name: each for each in model}, False)


def _equal_names(declared: Sequence[Declaration]) -> Iterator[str]:
    """Prometheus would not tell `a-b` and `a_b` apart."""
    seen: dict[str, str] = {}
    for each in declared:
        shown = metric_name(each.name)
        if shown in seen:
            yield f"{each.name} and {seen[shown]} are one metric for Prometheus; keep one of them"
        seen.setdefault(shown, each.name)


def _dimension_problems(place: str, declaration: Declaration, own: Declaration | None) -> Iterator[str]:
    if own is not None and len(declaration.dimensions) != len(own.dimensions):
        yield (
            f"{place}, {declaration.name}: {len(declaration.dimensions)} dimensions, but it has"
            f" {len(own.dimensions)}: {', '.join(own.dimensions)}"
        )
