"""Metrics that handlers send: what is shown, and what a careless or hostile handler cannot do."""

from typing import Any

import pytest
from tests.base.metrics.exposition import documented, exposed, scrape, server_metrics

from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.ops.metrics.custom_metrics import MAX_SERIES_PER_MODEL

MODEL = [["ModelName", "noop"], ["Level", "Model"]]


@pytest.fixture
def metrics() -> ServerMetrics:
    metrics = server_metrics()
    metrics.model("noop", "1.0")
    return metrics


def record(metrics: ServerMetrics, *entries: Any, model: str = "noop") -> dict[str, float]:
    """What the entries changed or added."""
    before = scrape(metrics)
    metrics.record_model_metrics(model, entries)
    return {name: value for name, value in scrape(metrics).items() if before.get(name) != value}


def test_counters_add_up_and_gauges_are_replaced(metrics: ServerMetrics) -> None:
    counter = ["Tokens", "Count", "counter", 3.0, MODEL, "id"]
    gauge = ["CacheUse", "Percent", "gauge", 40.0, [], "id"]
    assert record(metrics, counter, counter, gauge, [*gauge[:3], 50.0, [], ""]) == {
        "Tokens Level=Model ModelName=noop": 6,
        "CacheUse": 50,
    }
    assert documented(metrics)["Tokens"] == ("counter", "Torchserve prometheus counter metric with unit: Count")


def test_a_person_sees_the_numbers_of_a_model(metrics: ServerMetrics) -> None:
    tiers = ["StateBytes", "Bytes", "gauge", 40.0, [*MODEL, ["Tier", "host"]], ""]
    record(metrics, tiers, ["Tokens", "Count", "counter", 3.0, [], ""], ["Wait", "Seconds", "histogram", 1.0, [], ""])
    shown = {each.name: (each.dimensions.get("Tier"), each.value) for each in metrics.handlers.shown("noop")}
    assert shown["StateBytes"] == ("host", 40)
    assert shown["Tokens"] == (None, 3)
    assert "Wait" not in shown
    assert not list(metrics.handlers.shown("other"))


def test_histograms_have_torchserves_buckets(metrics: ServerMetrics) -> None:
    found = record(
        metrics, ["Wait", "Seconds", "histogram", 0.06, [], ""], ["Wait", "Seconds", "histogram", 20, [], ""]
    )
    bounds = [
        "0.005",
        "0.01",
        "0.025",
        "0.05",
        "0.075",
        "0.1",
        "0.25",
        "0.5",
        "0.75",
        "1.0",
        "2.5",
        "5.0",
        "7.5",
        "10.0",
    ]
    assert {name: value for name, value in found.items() if "_bucket" in name} == {
        **{f"Wait_bucket le={bound}": 0 for bound in bounds[:4]},
        **{f"Wait_bucket le={bound}": 1 for bound in bounds[4:]},
        "Wait_bucket le=+Inf": 2,
    }
    assert (found["Wait_sum"], found["Wait_count"]) == (20.06, 2)


def test_the_two_times_of_every_model_are_one_series_each(metrics: ServerMetrics) -> None:
    found = record(
        metrics,
        ["HandlerTime", "Milliseconds", "gauge", 1.5, MODEL, "id"],
        ["PredictionTime", "Milliseconds", "gauge", 2.5, MODEL[::-1], "id"],
    )
    assert found == {"HandlerTime Level=Model ModelName=noop": 1.5, "PredictionTime Level=Model ModelName=noop": 2.5}


def test_the_same_name_with_other_dimensions_is_another_series(metrics: ServerMetrics) -> None:
    found = record(
        metrics,
        ["Tokens", "Count", "counter", 1, [["kind", "in"]], ""],
        ["Tokens", "Count", "counter", 2, [["kind", "out"]], ""],
        ["Tokens", "Count", "counter", 4, [["kind", "out"], ["lora", "x"]], ""],
    )
    assert found == {"Tokens kind=in": 1, "Tokens kind=out": 2, "Tokens kind=out lora=x": 4}


def test_names_are_made_to_fit_and_values_escaped(metrics: ServerMetrics) -> None:
    found = record(metrics, ["2nd pass-time", "a\nb", "gauge", 1, [["in dim", 'x"\n\\']], ""])
    assert found == {'_2nd_pass_time in_dim=x"\n\\': 1}


def test_characters_that_deceive_or_have_no_bytes_are_spelled_out(metrics: ServerMetrics) -> None:
    found = record(metrics, ["Tokens", "C\udc80\x1b", "gauge", 1, [["kind", "é\x1b\x85\u2028\u202e\u200f\ud800"]], ""])
    assert found == {r"Tokens kind=é\x1b\x85\u2028\u202e\u200f\ud800": 1}
    assert r"with unit: C\\udc80\\x1b" in exposed(metrics).decode()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (["Requests2XX", "Count", "counter", 1, [], ""], "another metric has that name"),
        (["ts_queue_seconds_count", "Count", "counter", 1, [], ""], "another metric has that name"),
        (["ts_queue_seconds", "Count", "gauge", 1, [], ""], "another metric has that name"),
        (["Tokens", "Count", "counter", -1, [], ""], "a counter cannot grow by -1"),
        (["Tokens", "Count", "counter", float("nan"), [], ""], "not a finite number"),
        (["Tokens", "Count", "counter", "7", [], ""], "not a finite number"),
        (["Tokens", "Count", "counter", True, [], ""], "not a finite number"),
        (["Tokens", "Count", "summary", 1, [], ""], "its type is 'summary', not one of counter, gauge, histogram"),
        (["Tokens", "Count", "counter", 1], "it is not [name, unit, type, value"),
        (["Tokens", "Count", "counter", 1, [["a"]], ""], "it is not [name, unit, type, value"),
        (["Tokens", "Count", "counter", 1, [["a", ["b"]]], ""], "it is not [name, unit, type, value"),
        (["Tokens", "Count", "counter", 1, [["a", 1]], ""], "1 is not a text"),
        (["Tokens", "Count", "counter", 1, [["__a", "b"]], ""], "Prometheus keeps for itself"),
        (["Wait", "s", "histogram", 1, [["le", "b"]], ""], "Prometheus keeps for itself"),
        (["T" * 501, "Count", "counter", 1, [], ""], "is not a text of at most 500 characters"),
        (["Tokens", "Count", "counter", 1, [[f"d{n}", ""] for n in range(21)], ""], "it has 21 dimensions"),
        (["", "Count", "counter", 1, [], ""], "its name is empty"),
        ("Tokens", "it is not [name, unit, type, value"),
        (None, "it is not [name, unit, type, value"),
    ],
)
def test_what_cannot_be_shown_is_dropped_and_told_once(
    metrics: ServerMetrics, entry: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = ["Good", "Count", "counter", 1, [], ""]
    assert record(metrics, entry, good, entry) == {"Good": 1}
    (message,) = [line.getMessage() for line in caplog.records]
    assert reason in message
    assert "noop" in message


def test_a_dimension_without_bound_is_bounded(metrics: ServerMetrics, caplog: pytest.LogCaptureFixture) -> None:
    entries = [["Tokens", "Count", "counter", 1, [["request", str(n)]], ""] for n in range(2 * MAX_SERIES_PER_MODEL)]
    assert 0 < len(record(metrics, *entries)) <= MAX_SERIES_PER_MODEL
    assert len(caplog.records) == 1
    assert "use fewer values of dimensions" in caplog.text
    metrics.model("other", "1.0")
    assert len(record(metrics, ["Tokens", "Count", "counter", 1, [["a", "b"]], ""], model="other")) == 1


def test_a_series_of_two_models_stays_until_both_are_gone(metrics: ServerMetrics) -> None:
    metrics.model("other", "1.0")
    entry = ["Shared", "Count", "counter", 1, [["Level", "Model"]], ""]
    assert record(metrics, entry) == {"Shared Level=Model": 1}
    assert record(metrics, entry, model="other") == {"Shared Level=Model": 2}
    metrics.forget("noop", "1.0")
    assert scrape(metrics)["Shared Level=Model"] == 2
    metrics.forget("other", "1.0")
    assert "Shared" not in documented(metrics)


def test_a_worker_of_a_forgotten_model_records_nothing(metrics: ServerMetrics) -> None:
    metrics.forget("noop", "1.0")
    assert record(metrics, ["Tokens", "Count", "counter", 1, [], ""]) == {}
