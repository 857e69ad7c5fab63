"""prometheus_client's parser, which is strict about types and buckets, reads what a server under load shows."""

import math
from collections.abc import Iterator

import pytest
import requests
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.running_server import HANDLERS, RunningServer, model_folder

HANDLER = r"""
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


def handle(data, context):
    if data is None:
        return None
    metrics = context.metrics
    for index in range(len(data)):
        metrics.add_counter("Rows read", 1, index, [Dimension("quote", 'a"b\\c\nd')])
        metrics.add_time("Waited", 0.25, index, "s", metric_type=MetricTypes.HISTOGRAM)
        metrics.add_percent("Größe", 50, index)
    return ["ok"] * len(data)
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "odd", HANDLER)
    with RunningServer({"odd": folder, "stateful": HANDLERS / "stateful"}, {"drain_timeout": 1}) as server:
        server.wait_ready()
        for _ in range(5):
            assert server.predict("odd", "x").status_code == 200
        assert server.predict("stateful", "1", sequence="s").status_code == 200
        assert server.predict("nobody", "x").status_code == 404
        yield requests.get(f"{server.metrics}/metrics", timeout=180).text


@pytest.fixture(scope="module")
def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_every_line_is_understood(text: str, families: dict[str, Metric]) -> None:
    written = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert sum(len(family.samples) for family in families.values()) == len(written)


def test_every_family_has_a_type_and_a_help_text(families: dict[str, Metric]) -> None:
    assert {family.type for family in families.values()} == {"counter", "gauge", "histogram"}
    assert all(family.documentation for family in families.values())


def test_no_series_is_there_twice(families: dict[str, Metric]) -> None:
    series = [
        (sample.name, frozenset(sample.labels.items())) for family in families.values() for sample in family.samples
    ]
    assert len(set(series)) == len(series)


def test_histograms_are_cumulative_and_end_in_their_count(families: dict[str, Metric]) -> None:
    histograms = [family for family in families.values() if family.type == "histogram"]
    assert {"ts_request_seconds", "Waited"} <= {family.name for family in histograms}
    for family in histograms:
        buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
        counts: dict[frozenset[tuple[str, str]], float] = {}
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name != "le")
            if sample.name.endswith("_bucket"):
                buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
            elif sample.name.endswith("_count"):
                counts[labels] = sample.value
        for labels, found in buckets.items():
            assert found == sorted(found)
            assert [value for _, value in found] == sorted(value for _, value in found)
            assert found[-1] == (math.inf, counts[labels])


def test_what_handlers_call_things_survives(families: dict[str, Metric]) -> None:
    (rows,) = families["Rows_read"].samples
    assert (rows.labels["quote"], rows.value) == ('a"b\\c\nd', 5)
    (size,) = families["Gr__e"].samples
    assert size.value == 50
