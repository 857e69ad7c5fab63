"""`metrics.yaml` (the setting `metrics_config`): which metrics there are, in TorchServe's form.

    ts_metrics:                       # of the server; the last dimension is the host's name
      counter: [{name: Requests2XX, unit: Count, dimensions: [Level, Hostname]}]
    model_metrics:                    # of handlers; the dimension Hostname is added
      gauge: [{name: HandlerTime, unit: ms, dimensions: [ModelName, Level]}]

Where a file is configured, only what it lists exists. TorchServe runs without any metrics when the file is wrong; here
that is an error which keeps the server from starting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchserve_py.metrics.catalog import KINDS, MODEL_METRICS, SERVER_METRICS, Declaration
from torchserve_py.metrics.families import metric_name

_SECTIONS = ("ts_metrics", "model_metrics")
_ANCHORS = "dimensions"


class MetricsConfigError(ValueError):
    """The file is wrong; the message says where and how."""


@dataclass(frozen=True)
class MetricsConfig:
    """The metrics that a file lists, by name."""

    server: Mapping[str, Declaration]
    model: Mapping[str, Declaration]


@dataclass(frozen=True)
class MetricsPlan:
    """Which metrics there are and where they go.

    Attributes:
        config: What the operator's file lists; None without one: then everything is shown and handlers may add.
        mode: `prometheus`, `log` or `legacy`.
        auto_detect: Whether handlers may add metrics that the file does not list.
    """

    config: MetricsConfig | None = None
    mode: str = "prometheus"
    auto_detect: bool = False

    @property
    def logs(self) -> bool:
        """Whether metrics are written to log files."""
        return self.mode != "prometheus"

    @property
    def accepts_unlisted(self) -> bool:
        """Whether handlers may add metrics."""
        return self.config is None or self.auto_detect

    @property
    def model_metrics(self) -> Mapping[str, Declaration]:
        """The metrics that handlers find in their cache, by name."""
        return MODEL_METRICS if self.config is None else self.config.model


def read_metrics_config(path: Path) -> MetricsConfig:
    """Read a file.

    Raises:
        MetricsConfigError: It cannot be read, or something in it is wrong.
    """
    import yaml  # most servers have no such file

    try:
        with path.open(encoding="utf-8") as stream:
            document = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise MetricsConfigError(f"it cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise MetricsConfigError(f"it is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, dict):
        raise MetricsConfigError(f"it must be a mapping with {' and '.join(_SECTIONS)}")
    _refuse_unknown(document, (_ANCHORS, *_SECTIONS), "the file")
    server, model = (_section(document.get(name), name) for name in _SECTIONS)
    _refuse_equal_names([*server, *model])
    _check_server_metrics(server)
    _check_model_metrics(model)
    return MetricsConfig(server, model)


def _section(section: Any, place: str) -> dict[str, Declaration]:
    if section is None:
        return {}
    if not isinstance(section, dict):
        raise MetricsConfigError(f"{place} must be a mapping with {', '.join(KINDS)}, not {section!r:.50}")
    _refuse_unknown(section, KINDS, place)
    found: dict[str, Declaration] = {}
    for kind, entries in section.items():
        for declaration in _declarations(kind, entries, f"{place}.{kind}"):
            if declaration.name in found:
                raise MetricsConfigError(f"{place} lists {declaration.name} twice; keep one of them")
            found[declaration.name] = declaration
    return found


def _declarations(kind: str, entries: Any, place: str) -> Iterator[Declaration]:
    if entries is None:
        return
    if not isinstance(entries, list):
        raise MetricsConfigError(f"{place} must be a list of metrics, not {entries!r:.50}")
    for number, entry in enumerate(entries, 1):
        where = f"{place}, metric {number}"
        if not isinstance(entry, dict):
            raise MetricsConfigError(f"{where} must be a mapping with name, unit and dimensions, not {entry!r:.50}")
        _refuse_unknown(entry, ("name", "unit", "dimensions"), where)
        name = _text(entry.get("name"), f"{where}: name")
        where = f"{place}, {name}"
        unit = _text(entry.get("unit"), f"{where}: unit")
        dimensions = entry.get("dimensions")
        if not isinstance(dimensions, list | None):
            raise MetricsConfigError(f"{where}: dimensions must be a list of names, not {dimensions!r:.50}")
        names = tuple(_text(each, f"{where}: dimension") for each in dimensions or ())
        if len(set(names)) < len(names):
            raise MetricsConfigError(f"{where}: a dimension is there twice in {', '.join(names)}")
        yield Declaration(name, kind, unit, names)


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        missing = "is missing" if value is None else f"must be a text, not {value!r:.50}"
        raise MetricsConfigError(f"{what} {missing}")
    if not value.strip():
        raise MetricsConfigError(f"{what} is empty")
    return value


def _refuse_unknown(mapping: dict[Any, Any], known: tuple[str, ...], place: str) -> None:
    for key in mapping:
        if key not in known:
            raise MetricsConfigError(f"{place} has the unknown key {key!r}; it may have {', '.join(known)}")


def _refuse_equal_names(names: list[str]) -> None:
    """Prometheus would not tell `a-b` and `a_b` apart."""
    shown: dict[str, str] = {}
    for name in names:
        other = shown.setdefault(metric_name(name), name)
        if other != name or names.count(name) > 1:
            raise MetricsConfigError(f"{name} and {other} are one metric for Prometheus; keep one of them")


def _check_server_metrics(declared: Mapping[str, Declaration]) -> None:
    for name, declaration in declared.items():
        own = SERVER_METRICS.get(name)
        if own is not None and declaration.kind != own.kind:
            raise MetricsConfigError(f"ts_metrics lists {name} as a {declaration.kind}; the server has a {own.kind}")
        _check_dimensions("ts_metrics", declaration, own)


def _check_model_metrics(declared: Mapping[str, Declaration]) -> None:
    for name, declaration in declared.items():
        _check_dimensions("model_metrics", declaration, MODEL_METRICS.get(name))
        if "Hostname" in declaration.dimensions:
            raise MetricsConfigError(f"model_metrics, {name}: the dimension Hostname is added and must not be listed")


def _check_dimensions(place: str, declaration: Declaration, own: Declaration | None) -> None:
    if own is not None and len(declaration.dimensions) != len(own.dimensions):
        raise MetricsConfigError(
            f"{place}, {declaration.name}: {len(declaration.dimensions)} dimensions, but it has"
            f" {len(own.dimensions)}: {', '.join(own.dimensions)}"
        )
