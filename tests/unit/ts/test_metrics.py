"""``context.metrics``: what handlers report and what of it reaches the frontend."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.metric_cache_errors import (
    MetricsCacheIOError,
    MetricsCacheKeyError,
    MetricsCachePyYamlError,
    MetricsCacheTypeError,
    MetricsCacheValueError,
)
from ts.metrics.metric_cache_yaml_impl import MetricsCacheYamlImpl
from ts.metrics.metric_type_enum import MetricTypes
from ts.metrics.metrics_cache import MetricsCache
from ts.metrics.metrics_store import MetricsStore
from ts.metrics.unit import Units
from ts.service import emit_metrics

MODEL = [["ModelName", "m"], ["Level", "Model"]]


@pytest.fixture
def metrics() -> MetricsCache:
    cache = MetricsCache("m")
    cache.set_request_ids({0: "a", 1: "b"})
    return cache


def test_every_kind_of_value_becomes_a_record(metrics: MetricsCache) -> None:
    metrics.add_counter("Calls", 2)
    metrics.add_time("Step", 1.5, idx=1)
    metrics.add_time("Long", 2, unit="s")
    metrics.add_size("Weights", 3, unit="GB")
    metrics.add_percent("Load", 50)
    metrics.add_error("Broken", 1)
    metrics.add_metric("Tokens", 4, "tokens", 0, [Dimension("Kind", "new")], MetricTypes.HISTOGRAM)

    assert metrics.take_records() == [
        ["Calls", "Count", "counter", 2.0, MODEL, "a,b"],
        ["Step", "Milliseconds", "gauge", 1.5, MODEL, "b"],
        ["Long", "Seconds", "gauge", 2.0, MODEL, "a,b"],
        ["Weights", "Gigabytes", "gauge", 3.0, MODEL, "a,b"],
        ["Load", "Percent", "gauge", 50.0, MODEL, "a,b"],
        ["Broken", "unit", "counter", 1.0, [["Level", "Error"]], "a,b"],
        ["Tokens", "tokens", "histogram", 4.0, [["Kind", "new"], *MODEL], "a"],
    ]
    assert metrics.take_records() == []


def test_given_dimensions_of_the_default_names_replace_the_defaults(metrics: MetricsCache) -> None:
    dimensions = [Dimension("Level", "Layer"), Dimension("ModelName", "other")]
    metrics.add_counter("Calls", 1, dimensions=dimensions)
    metrics.add_counter("Calls", 1, dimensions=dimensions)

    assert [record[4] for record in metrics.take_records()] == [[["Level", "Layer"], ["ModelName", "other"]]] * 2
    assert len(dimensions) == 2


def test_a_metric_can_be_made_first_and_updated_later(metrics: MetricsCache) -> None:
    made = metrics.add_metric_to_cache("Queue", "count", ["Name"], MetricTypes.GAUGE)

    assert metrics.get_metric("Queue", MetricTypes.GAUGE) is made
    assert metrics.take_records() == []
    assert metrics.cache_keys() == ["gauge:Queue"]
    made.add_or_update(7, ["x"], "a")
    made.update(8, "b", [Dimension("Other", 1)])
    assert metrics.take_records() == [
        ["Queue", "Count", "gauge", 7.0, [["Name", "x"]], "a"],
        ["Queue", "Count", "gauge", 8.0, [["Other", "1"]], "b"],
    ]


def test_what_cannot_be_recorded_is_logged_and_does_not_raise(
    metrics: MetricsCache, caplog: pytest.LogCaptureFixture
) -> None:
    metrics.add_counter("Calls", -1)
    metrics.add_metric_to_cache("Queue", "count", ["Name"]).add_or_update(1, [])

    assert metrics.take_records() == []
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2
    assert "'Calls'" in caplog.text


def test_wrong_arguments_are_refused(metrics: MetricsCache) -> None:
    with pytest.raises(MetricsCacheValueError, match="'minutes'"):
        metrics.add_time("Step", 1, unit="minutes")
    with pytest.raises(MetricsCacheValueError, match="'TB'"):
        metrics.add_size("Weights", 1, unit="TB")
    with pytest.raises(MetricsCacheKeyError, match="no gauge named 'Absent'"):
        metrics.get_metric("Absent", MetricTypes.GAUGE)
    with pytest.raises(MetricsCacheTypeError, match="metric_type"):
        metrics.get_metric("Absent", "gauge")  # type: ignore[arg-type]
    with pytest.raises(MetricsCacheTypeError, match="list of Dimension"):
        metrics.add_counter("Calls", 1, dimensions=["x"])  # type: ignore[list-item]


def test_values_outside_of_a_batch_belong_to_no_request() -> None:
    cache = MetricsCache("m")
    cache.add_counter("Loads", 1)

    assert cache.take_records() == [["Loads", "Count", "counter", 1.0, MODEL, ""]]


def test_a_handlers_metrics_travel_with_the_results_and_never_over_standard_output(
    make_worker: Callable[..., Worker], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is not None:
                context.metrics.add_counter("Rows", len(data))
                return ["ok"] * len(data)
        """,
        model_name="m",
    )
    worker.admit_frame([row("a"), row("b")])
    worker.runtime.step()

    metrics, results = worker.peer.arrived()

    assert metrics == ["metrics", [["Rows", "Count", "counter", 2.0, MODEL, "a,b"]]]
    assert results[0] == "results"
    assert "Rows" not in capfd.readouterr().out


def test_the_older_store_keeps_one_metric_per_name_and_request() -> None:
    store = MetricsStore({0: "a", 1: "b"}, "m")

    store.add_counter("Calls", 1)
    store.add_counter("Calls", 2)
    store.add_time("Step", 5, idx=0)
    store.add_time("Step", 6, idx=0)
    store.add_error("Broken", "text")

    assert [(metric.name, metric.value, metric.request_id) for metric in store.store] == [
        ("Calls", 3, "a,b"),
        ("Step", 6, "a"),
        ("Broken", "text", None),
    ]


def test_metrics_are_printed_in_the_form_that_log_readers_know(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        emit_metrics([Metric("Step", 5, "ms", [Dimension("Level", "Model")], "a")])

    assert caplog.messages[0].startswith("[METRICS]Step.Milliseconds:5|#Level:Model|#hostname:")
    assert caplog.messages[0].endswith(",a")


def test_units_have_their_names() -> None:
    units: dict[Any, str] = Units().units

    assert (units["ms"], units["kB"], units[""], units[None]) == ("Milliseconds", "Kilobytes", "unit", "unit")


def test_declared_metrics_are_there_from_the_start() -> None:
    cache = MetricsCache("m", [["gauge", "Queue", "ms", ["ModelName", "Level"]], ["histogram", "Lengths", "count", []]])

    assert cache.cache_keys() == ["gauge:Queue", "histogram:Lengths"]
    cache.get_metric("Queue", MetricTypes.GAUGE).add_or_update(1, ["m", "Model"])
    cache.add_time("Queue", 2)
    cache.get_metric("Lengths", MetricTypes.HISTOGRAM).add_or_update(3)
    assert cache.take_records() == [
        ["Queue", "Milliseconds", "gauge", 1.0, MODEL, ""],
        ["Queue", "Milliseconds", "gauge", 2.0, MODEL, ""],
        ["Lengths", "Count", "histogram", 3.0, [], ""],
    ]


def test_a_value_of_the_wrong_size_for_a_declared_metric_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cache = MetricsCache("m", [["counter", "Calls", "count", ["ModelName"]]])
    cache.add_counter("Calls", 1)

    assert cache.take_records() == []
    assert "expected values for the dimensions ['ModelName']" in caplog.text


def test_a_wrong_unit_is_a_value_error_as_well() -> None:
    with pytest.raises(ValueError, match="'TB'"):
        MetricsCache("m").add_size("Weights", 1, unit="TB")


def test_torchserves_cache_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.yaml"
    file.write_text("model_metrics:\n  counter:\n    - {name: Calls, unit: count, dimensions: [ModelName, Level]}\n")
    cache = MetricsCacheYamlImpl(config_file_path=str(file))

    assert cache.cache_keys() == []
    cache.initialize_cache()
    cache.set_model_name("m")
    cache.add_counter("Calls", 2)
    assert cache.get_metric("Calls").dimension_names == ["ModelName", "Level"]
    assert cache.take_records() == [["Calls", "Count", "counter", 2.0, MODEL, ""]]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("other: {}", MetricsCacheKeyError),
        ("model_metrics: {}", MetricsCacheValueError),
        ("model_metrics: {summary: []}", MetricsCacheKeyError),
        ("model_metrics: {counter: [{name: A, unit: s}]}", MetricsCacheKeyError),
    ],
)
def test_torchserves_cache_refuses_a_wrong_file(tmp_path: Path, text: str, error: type[Exception]) -> None:
    file = tmp_path / "metrics.yaml"
    file.write_text(text)
    with pytest.raises(error):
        MetricsCacheYamlImpl(str(file)).initialize_cache()


def test_torchserves_cache_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(MetricsCacheTypeError):
        MetricsCacheYamlImpl("")
    with pytest.raises(MetricsCacheIOError):
        MetricsCacheYamlImpl(str(tmp_path / "none.yaml"))
    (tmp_path / "metrics.yaml").write_text("a: [")
    with pytest.raises(MetricsCachePyYamlError):
        MetricsCacheYamlImpl(str(tmp_path / "metrics.yaml"))


def test_metrics_that_cannot_be_sent_fail_no_prediction(
    make_worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(
        """
        from ts.metrics.dimension import Dimension

        def handle(data, context):
            if data is not None:
                context.metrics.add_counter("tokens", 1, dimensions=[Dimension(object(), "a")])
                return ["ok"]
        """
    )

    assert worker.infer(row("a"))[0][5] == b"ok"
    assert "Metrics of the handler cannot be sent" in caplog.text
