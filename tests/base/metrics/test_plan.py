"""What a file and the mode change of what is shown and logged."""

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.base.metrics.exposition import HOST, documented, exposed, scrape, server_metrics
from tests.base.metrics.records import AT, end_batch, end_job

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.catalog import LEGACY_NAMES, MODEL_METRICS, SERVER_METRICS, Declaration
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError, MetricsPlan
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.ops.metrics.metric_log import LINE_PER_EVENT

MODEL = [["ModelName", "noop"], ["Level", "Model"]]


def listing(
    *model: Declaration, server: tuple[Declaration, ...] = (), auto_detect: bool = False, mode: str = "prometheus"
) -> ServerMetrics:
    """The metrics of a server whose file lists these."""
    named = [{each.name: each for each in listed} for listed in (server, model)]
    metrics = server_metrics(MetricsPlan(*named, auto_detect, mode))
    metrics.model("noop", "1.0")
    return metrics


def names(metrics: ServerMetrics) -> set[str]:
    return set(documented(metrics))


def tokens(value: float = 1, kind: str = "counter", dimensions: Any = MODEL, ids: str = "id") -> list[Any]:
    return ["Tokens", "Count", kind, value, dimensions, ids]


# A file


def test_the_catalog_is_what_is_shown_without_a_file() -> None:
    metrics = server_metrics()
    metrics.model("noop", "1.0")
    assert {name: kind for name, (kind, _) in documented(metrics).items()} == {
        name: each.kind for name, each in (SERVER_METRICS | MODEL_METRICS).items()
    }


def test_nothing_but_what_is_listed_is_shown() -> None:
    metrics = listing(server=(SERVER_METRICS["Requests2XX"],))
    metrics.answered(AT, 200)
    metrics.answered(AT, 400)
    end_batch(metrics.model("noop", "1.0"), 1, 1)
    metrics.record_model_metrics("noop", [tokens()])
    assert scrape(metrics) == {"Requests2XX Level=Host": 1}


def test_units_and_names_of_dimensions_are_the_files() -> None:
    requests = Declaration("ts_inference_requests_total", "counter", "Requests", ("model", "model version", "hostname"))
    metrics = listing(server=(requests,))
    metrics.model("noop", "1.0").by_version.requests_total.inc()
    assert scrape(metrics)["ts_inference_requests_total model=noop model_version=1.0"] == 1
    assert documented(metrics) == {
        "ts_inference_requests_total": ("counter", "Torchserve prometheus counter metric with unit: Requests")
    }
    metrics.forget("noop", "1.0")
    assert scrape(metrics) == {}


def test_the_type_and_unit_of_a_handlers_metric_are_the_files() -> None:
    metrics = listing(Declaration("Tokens", "gauge", "pieces", ("Model", "Level")))
    metrics.record_model_metrics("noop", [tokens(3), tokens(2)])
    assert scrape(metrics) == {"Tokens Level=Model Model=noop": 2}
    assert documented(metrics)["Tokens"] == ("gauge", "Torchserve prometheus gauge metric with unit: pieces")


def test_dimensions_of_the_listed_names_may_come_in_any_order() -> None:
    metrics = listing(Declaration("Tokens", "counter", "Count", ("Level", "ModelName")))
    metrics.record_model_metrics("noop", [tokens()])
    assert scrape(metrics) == {"Tokens Level=Model ModelName=noop": 1}


def test_a_counter_that_the_file_makes_one_does_not_shrink(caplog: pytest.LogCaptureFixture) -> None:
    metrics = listing(Declaration("Tokens", "counter", "Count", ("ModelName", "Level")))
    metrics.record_model_metrics("noop", [tokens(-1, "gauge")])
    assert "a counter cannot grow by -1" in caplog.text


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("Other", "metrics_config does not list it; list it there, or set model_metrics_auto_detect=true"),
        ("Tokens", "it has the dimensions ModelName, Level; metrics_config lists a"),
    ],
)
def test_what_the_file_does_not_allow_is_dropped_and_told_once(
    caplog: pytest.LogCaptureFixture, declared: str, message: str
) -> None:
    metrics = listing(Declaration(declared, "counter", "Count", ("a",)))
    metrics.record_model_metrics("noop", [tokens(), tokens()])
    assert scrape(metrics) == {}
    (record,) = caplog.records
    assert message in record.getMessage()


def test_auto_detection_accepts_what_the_file_lacks() -> None:
    metrics = listing(auto_detect=True)
    metrics.record_model_metrics("noop", [tokens()])
    end_batch(metrics.model("noop", "1.0"), 0.5, 1)
    found = scrape(metrics)
    assert found["Tokens Level=Model ModelName=noop"] == 1
    assert found["PredictionTime Level=Model ModelName=noop"] == 500


@pytest.mark.parametrize(("kind", "shown"), [("gauge", 250), ("counter", 750)])
def test_prediction_time_is_of_the_listed_type(kind: str, shown: float) -> None:
    metrics = listing(Declaration("PredictionTime", kind, "ms", ("ModelName", "Level")))
    for seconds in (0.5, 0.25):
        end_batch(metrics.model("noop", "1.0"), seconds, 1)
    assert scrape(metrics) == {"PredictionTime Level=Model ModelName=noop": shown}


def test_a_listed_metric_stays_when_the_last_model_goes() -> None:
    metrics = listing(Declaration("Tokens", "counter", "Count", ("ModelName", "Level")))
    metrics.record_model_metrics("noop", [tokens()])
    metrics.forget("noop", "1.0")
    assert names(metrics) == {"Tokens"}
    assert scrape(metrics) == {}


def test_workers_are_told_what_is_declared() -> None:
    metrics = listing(Declaration("Tokens", "counter", "Count", ("a", "b")))
    assert metrics.declared_model_metrics == [["counter", "Tokens", "Count", ["a", "b"]]]
    assert ["gauge", "HandlerTime", "ms", ["ModelName", "Level"]] in server_metrics().declared_model_metrics


def test_a_name_that_prometheus_would_confuse_with_another_is_refused() -> None:
    with pytest.raises(MetricsConfigError, match="model_metrics, ts_batch_size_count: another metric has that name"):
        listing(Declaration("ts_batch_size_count", "counter", "Count", ()), server=(SERVER_METRICS["ts_batch_size"],))


# Metrics that a script reports


def test_a_scripts_values_are_those_of_the_listed_metrics() -> None:
    temperature = Declaration("Temperature", "gauge", "Celsius", ("Place", "Host"))
    metrics = listing(server=(temperature, SERVER_METRICS["CPUUtilization"]))
    metrics.record("Temperature", ["rack"], 21, HOST)
    metrics.record("CPUUtilization", ["Host"], 12, HOST)
    metrics.record("Unlisted", [], 1, HOST)
    assert b'Temperature{Place="rack",Host="box",} 21.0\n' in exposed(metrics)
    assert b'CPUUtilization{Level="Host",Hostname="box",} 12.0\n' in exposed(metrics)
    assert names(metrics) == {"Temperature", "CPUUtilization"}


def test_a_scripts_value_with_other_dimensions_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    metrics = server_metrics()
    for _ in range(2):
        metrics.record("CPUUtilization", ["Host", "0"], 12, HOST)
    metrics.record("Requests2XX", ["Host"], -1, HOST)
    assert [record.args[0] for record in caplog.records] == ["CPUUtilization", "Requests2XX"]  # type: ignore[index]
    assert "['Level']" in caplog.text


# Modes


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Callable[[ServerMetrics, str], list[str]]:
    """What flushing writes to a logger, without the times."""

    def flush(metrics: ServerMetrics, name: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO):
            metrics.flush_logs()
        written = [line for each in caplog.records if each.name == name for line in each.getMessage().split("\n")]
        for line in written:
            assert re.fullmatch(r".*,timestamp:\d+", line)
        return [re.sub(r",timestamp:\d+$", "", line) for line in written]

    return flush


Logged = Callable[[ServerMetrics, str], list[str]]


SUMMARY = MetricsPlan(mode="log", summary=True)


def test_a_summary_has_a_counters_growth_and_a_gauge_that_was_set(logged: Logged) -> None:
    metrics = server_metrics(SUMMARY)
    assert logged(metrics, "TS_METRICS") == []
    for _ in range(3):
        metrics.answered(AT, 200)
    metrics.record("DiskUsage", ["Host"], 7)
    expected = ["Requests2XX.Count:3.0|#Level:Host|#hostname:box", "DiskUsage.Gigabytes:7.0|#Level:Host|#hostname:box"]
    assert logged(metrics, "TS_METRICS") == expected
    assert logged(metrics, "TS_METRICS") == []
    for _ in range(2):
        metrics.answered(AT, 200)
    metrics.record("DiskUsage", ["Host"], 7)
    assert logged(metrics, "TS_METRICS") == [expected[0].replace("3.0", "2.0"), expected[1]]


def test_a_model_that_comes_back_starts_from_nothing(logged: Logged) -> None:
    metrics = server_metrics(SUMMARY)
    line = "ts_inference_requests_total.Count:{}|#model_name:noop,model_version:1.0|#hostname:box"
    metrics.model("noop", "1.0").by_version.requests_total.inc(5)
    assert logged(metrics, "TS_METRICS") == [line.format("5.0")]
    metrics.forget("noop", "1.0")
    metrics.model("noop", "1.0").by_version.requests_total.inc(2)
    assert logged(metrics, "TS_METRICS") == [line.format("2.0")]


def test_each_request_has_torchserves_lines(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="log"))
    model = metrics.model("noop", "1.0")
    for at, by_default in ((AT, True), (AT + 0.001, False)):
        end_batch(model, 0.5, 0.75, at=at)
        end_job(model, 1.25, waited=0.0625, by_default=by_default, at=at)
        metrics.answered(at, 200)
    model.worker_load_time("W-9000-noop_1.0", 1500)
    one = [
        "WorkerThreadTime.Milliseconds:250.000|#Level:Host|#hostname:box",
        "ts_inference_requests_total.Count:1.0|#model_name:noop,model_version:{0}|#hostname:box",
        "ts_inference_latency_microseconds.Microseconds:1250000.000|#model_name:noop,model_version:{0}|#hostname:box",
        "ts_queue_latency_microseconds.Microseconds:62500.000|#model_name:noop,model_version:{0}|#hostname:box",
        "QueueTime.Milliseconds:62.500|#Level:Host|#hostname:box",
        "Requests2XX.Count:1.0|#Level:Host|#hostname:box",
    ]
    load = "WorkerLoadTime.Milliseconds:1500.0|#WorkerName:W-9000-noop_1.0,Level:Host|#hostname:box"
    expected = [line.format(version) for version in ("default", "1.0") for line in one] + [load]
    written = logged(metrics, "TS_METRICS")
    assert [line for line in written if line.partition(".")[0] in LINE_PER_EVENT] == expected
    assert logged(metrics, "TS_METRICS") == []


def test_a_request_that_gets_no_answer_of_a_handler_has_no_times(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="log"))
    model = metrics.model("noop", "1.0")
    end_job(model, 1.25, told=Cause.queue_full, failed=True)
    metrics.answered(AT, 503)
    names = [line.partition(".")[0] for line in logged(metrics, "TS_METRICS")]
    assert names == ["ts_inference_requests_total", "Requests5XX", "ts_outcomes_total"]


def test_lines_of_a_request_are_only_of_what_the_file_lists(logged: Logged) -> None:
    listed = Declaration("ts_queue_latency_microseconds", "counter", "100%", ("m", "v", "h"))
    metrics = listing(server=(listed,), mode="log")
    model = metrics.model("noop", "1.0")
    end_job(model, 1.0, waited=0.5)
    metrics.answered(AT, 200)
    line = "ts_queue_latency_microseconds.100%:500000.000|#m:noop,v:1.0|#hostname:box"
    assert logged(metrics, "TS_METRICS") == [line]


def test_every_value_of_a_handler_is_a_line(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="log"))
    model = metrics.model("noop", "1.0")
    end_batch(model, 0.0025, 1, 2, "ab")
    metrics.record_model_metrics(
        "noop", [tokens(2, ids="a"), tokens(2, ids="b"), tokens(-1), ["Wait", "Seconds", "histogram", 0.5, [], ""]]
    )
    assert logged(metrics, "MODEL_METRICS") == [
        "PredictionTime.ms:2.5|#ModelName:noop,Level:Model|#hostname:box,requestID:a,b",
        "Tokens.Count:2.0|#ModelName:noop,Level:Model|#hostname:box,requestID:a",
        "Tokens.Count:2.0|#ModelName:noop,Level:Model|#hostname:box,requestID:b",
        "Wait.Seconds:0.5|#|#hostname:box,requestID:",
    ]
    assert scrape(metrics)["Tokens Level=Model ModelName=noop"] == 4


def test_what_a_handler_says_cannot_forge_a_line(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="log"))
    metrics.model("noop", "1.0")
    metrics.record_model_metrics("noop", [tokens(dimensions=[["a", "b\nc"]], ids="x\ny")])
    assert logged(metrics, "MODEL_METRICS") == [r"Tokens.Count:1.0|#a:b\nc|#hostname:box,requestID:x\ny"]


def test_many_lines_do_not_wait_for_the_next_flush(caplog: pytest.LogCaptureFixture) -> None:
    metrics = server_metrics(MetricsPlan(mode="log"))
    metrics.model("noop", "1.0")
    with caplog.at_level(logging.INFO):
        metrics.record_model_metrics("noop", [tokens()] * 1000)
        assert len(caplog.records) > 1
        metrics.flush_logs()
    assert sum(len(each.getMessage().split("\n")) for each in caplog.records if each.name == "MODEL_METRICS") == 1000


def test_legacy_shows_three_counters_and_logs_the_rest(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="legacy"))
    end_job(metrics.model("noop", "1.0"), told=Cause.queue_full, failed=True)
    metrics.answered(AT, 200)
    metrics.record_model_metrics("noop", [tokens()])
    assert names(metrics) == LEGACY_NAMES
    outcome = (
        "ts_outcomes_total.Count:1.0|#model_name:noop,model_version:1.0,protocol:http,cause:queue_full|#hostname:box"
    )
    assert logged(metrics, "TS_METRICS") == ["Requests2XX.Count:1.0|#Level:Host|#hostname:box", outcome]


def test_the_mode_prometheus_logs_nothing(logged: Logged) -> None:
    metrics = server_metrics(MetricsPlan(mode="prometheus"))
    metrics.answered(AT, 200)
    end_job(metrics.model("noop", "1.0"), 2, waited=1)
    end_batch(metrics.model("noop", "1.0"), 1, 1)
    assert logged(metrics, "TS_METRICS") == logged(metrics, "MODEL_METRICS") == []


def test_a_file_and_a_mode_go_together(tmp_path: Path, logged: Logged) -> None:
    metrics = listing(server=(Declaration("Requests2XX", "counter", "Answers", ("L", "H")),), mode="log")
    metrics.answered(AT, 200)
    metrics.answered(AT, 400)
    assert logged(metrics, "TS_METRICS") == ["Requests2XX.Answers:1.0|#L:Host|#hostname:box"]


@pytest.mark.parametrize("mode", ["log", "prometheus"])
async def test_records_are_added_up_and_their_lines_handed_over_within_50_milliseconds(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, delays = asyncio.get_running_loop(), list[float]()

    def at_once(delay: float, callback: Callable[[], None]) -> asyncio.Handle:
        delays.append(delay)
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", at_once)
    metrics = server_metrics(MetricsPlan(mode=mode))
    model = metrics.model("noop", "1.0")
    caplog.set_level(logging.INFO, "TS_METRICS")
    for count in (1, 2):  # the second pair finds no timer of the first
        end_job(model, 1, waited=0.5)
        metrics.answered(AT, 200)
        for _ in range(3):
            await asyncio.sleep(0)
        assert model.outcomes.succeeded == count
        said = [each.getMessage().partition(".")[0] for each in caplog.records]
        assert ("Requests2XX" in said and "QueueTime" in said) is (mode == "log")
        caplog.clear()
    assert sum(delays) <= 2 * 0.05
