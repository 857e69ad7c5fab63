"""What several workers expose, as one text that Prometheus reads."""

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from torchserve_py.contracts.truss.merged_metrics import merged


def exposed(count: float, *, more: bool = False) -> str:
    registry = CollectorRegistry()
    Counter("orders", 'Help with "quotes" and\na line', ["kind"], registry=registry).labels('a "b" {c} d').inc(count)
    Gauge("level", "Level", registry=registry).set(count)
    Histogram("seconds", "How long", registry=registry, buckets=(1.0,)).observe(count)
    if more:
        Gauge("other", "Only here", registry=registry).set(1)
    text: str = generate_latest(registry).decode()
    return text


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families: Any = list(text_string_to_metric_families(text))
    assert len({family.name for family in families}) == len(families)
    found = {}
    for family in families:
        for sample in family.samples:
            if not sample.name.endswith("_created"):
                found[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    return found


def test_every_series_tells_which_worker_it_is_from() -> None:
    told = samples(merged({"9000": exposed(2), "9001": exposed(3, more=True)}))
    expected = {}
    for worker, text in {"9000": exposed(2), "9001": exposed(3, more=True)}.items():
        for (name, labels), value in samples(text).items():
            expected[(name, tuple(sorted([*labels, ("ts_worker", worker)])))] = value
    assert told == expected


def test_a_family_stands_there_once_with_its_help_and_type() -> None:
    text = merged({"9000": exposed(2), "9001": exposed(3)})
    lines = text.splitlines()
    assert lines.count("# TYPE orders_total counter") == 1
    series = [number for number, line in enumerate(lines) if line.startswith("orders_total{")]
    assert series == [series[0], series[0] + 1]
    assert lines[series[0] - 1] == "# TYPE orders_total counter"
    assert lines[series[0] - 2] == '# HELP orders_total Help with "quotes" and\\na line'


def test_only_line_feeds_end_lines() -> None:
    odd = "a\u2028b\x85c\x0bd"
    text = f'# TYPE level gauge\nlevel{{kind="{odd}"}} 1\n'
    assert samples(merged({"9000": text})) == {("level", (("kind", odd), ("ts_worker", "9000"))): 1}


@pytest.mark.parametrize("texts", [{}, {"9000": ""}, {"9000": "", "9001": ""}])
def test_nothing_is_nothing(texts: dict[str, str]) -> None:
    assert merged(texts) == ""
