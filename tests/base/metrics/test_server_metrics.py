"""What a scrape shows: TorchServe's series under their exact names, ours beside them, all from the start."""

from collections.abc import Callable

import pytest
from tests.base.metrics.exposition import documented, exposed, scrape, server_metrics
from tests.base.metrics.records import AT, end_batch, end_job

from torchserve_py.base.causes import Cause, CloseReason, Reason
from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.base.metrics.model_metrics import ModelMetrics
from torchserve_py.base.metrics.server_metrics import ServerMetrics

OF_THE_SERVER = {
    "Requests2XX Level=Host",
    "Requests4XX Level=Host",
    "Requests5XX Level=Host",
    "QueueTime Level=Host",
    "WorkerThreadTime Level=Host",
    "CPUUtilization Level=Host",
    "MemoryUsed Level=Host",
    "MemoryAvailable Level=Host",
    "MemoryUtilization Level=Host",
    "DiskUsage Level=Host",
    "DiskAvailable Level=Host",
    "DiskUtilization Level=Host",
}
NUMBERS_OF_A_MODEL = {
    "ts_open_sequences",
    "ts_queue_depth",
    "ts_workers_wanted",
    "ts_workers_ready",
    "ts_workers_given_up",
    "ts_worker_restarts_total",
}
HISTOGRAMS_OF_A_MODEL = {
    *("ts_queue_seconds", "ts_handler_seconds", "ts_request_seconds", "ts_batch_size"),
    *("ts_time_to_first_part_seconds", "ts_time_between_parts_seconds"),
}


@pytest.fixture
def metrics() -> ServerMetrics:
    return server_metrics()


def test_the_servers_series_are_there_at_zero_from_the_start(metrics: ServerMetrics) -> None:
    assert scrape(metrics) == dict.fromkeys(OF_THE_SERVER, 0)


COUNTERS_OF_REQUESTS = {
    *("ts_inference_requests_total", "ts_inference_latency_microseconds", "ts_queue_latency_microseconds")
}


def test_a_version_that_nobody_uses_has_few_series(metrics: ServerMetrics) -> None:
    without = len(exposed(metrics))
    metrics.model("noop", "1.0")
    found = scrape(metrics)
    model = " model_name=noop model_version=1.0"
    assert {name for name in found if model in name} == {f"{name}{model}" for name in NUMBERS_OF_A_MODEL}
    assert len(exposed(metrics)) - without < 1_200


def test_series_of_a_version_that_is_gone_do_not_come_back(metrics: ServerMetrics) -> None:
    model = metrics.model("noop", "1.0")
    metrics.forget("noop", "1.0")
    model.show()
    assert not [name for name in scrape(metrics) if "noop" in name]


def test_a_models_series_are_there_at_zero_once_it_is_used(metrics: ServerMetrics) -> None:
    metrics.model("noop", "1.0").show()
    found = scrape(metrics)
    assert set(found.values()) == {0}
    model = " model_name=noop model_version=1.0"
    assert {f"{name}{model}" for name in NUMBERS_OF_A_MODEL | COUNTERS_OF_REQUESTS} <= found.keys()
    assert {f"{name}_{part}{model}" for name in HISTOGRAMS_OF_A_MODEL for part in ("sum", "count")} <= found.keys()
    assert {f"ts_sequences_closed_total{model} reason={reason}" for reason in CloseReason} <= found.keys()
    assert {f"ts_scaling_total{model} reason={reason}" for reason in Reason} <= found.keys()
    assert "ts_inference_requests_total model_name=noop model_version=default" in found
    assert {"HandlerTime Level=Model ModelName=noop", "PredictionTime Level=Model ModelName=noop"} <= found.keys()


def test_types_and_help_texts_are_torchserves(metrics: ServerMetrics) -> None:
    expected = {
        "Requests2XX": ("counter", "Count"),
        "Requests4XX": ("counter", "Count"),
        "Requests5XX": ("counter", "Count"),
        "ts_inference_requests_total": ("counter", "Count"),
        "ts_inference_latency_microseconds": ("counter", "Microseconds"),
        "ts_queue_latency_microseconds": ("counter", "Microseconds"),
        "QueueTime": ("gauge", "Milliseconds"),
        "WorkerThreadTime": ("gauge", "Milliseconds"),
        "WorkerLoadTime": ("gauge", "Milliseconds"),
        "CPUUtilization": ("gauge", "Percent"),
        "MemoryUsed": ("gauge", "Megabytes"),
        "MemoryAvailable": ("gauge", "Megabytes"),
        "MemoryUtilization": ("gauge", "Percent"),
        "DiskUsage": ("gauge", "Gigabytes"),
        "DiskAvailable": ("gauge", "Gigabytes"),
        "DiskUtilization": ("gauge", "Percent"),
        "GPUMemoryUtilization": ("gauge", "Percent"),
        "GPUMemoryUsed": ("gauge", "Megabytes"),
        "GPUUtilization": ("gauge", "Percent"),
        "HandlerTime": ("gauge", "ms"),
        "PredictionTime": ("gauge", "ms"),
    }
    found = documented(metrics)
    assert {name: found[name] for name in expected} == {
        name: (kind, f"Torchserve prometheus {kind} metric with unit: {unit}")
        for name, (kind, unit) in expected.items()
    }
    assert {found[name][0] for name in HISTOGRAMS_OF_A_MODEL} == {"histogram"}


def test_a_line_looks_like_torchserves(metrics: ServerMetrics) -> None:
    for _ in range(8):
        metrics.answered(AT, 200)
    assert b'Requests2XX{Level="Host",Hostname="box",} 8.0\n' in exposed(metrics)
    metrics.model("noop", "1.0").by_default.requests_total.inc()
    line = b'ts_inference_requests_total{model_name="noop",model_version="default",hostname="box",} 1.0\n'
    assert line in exposed(metrics)


@pytest.mark.parametrize(
    ("act", "changed"),
    [
        (
            lambda model: end_job(model, 1.5, waited=0.002, told=Cause.cancelled, failed=True),
            {
                "ts_queue_latency_microseconds": 2000.0,
                "QueueTime Level=Host": 2.0,
                "ts_queue_seconds_sum": 0.002,
                "ts_queue_seconds_count": 1,
                "ts_inference_latency_microseconds": 1.5e6,
                "ts_request_seconds_sum": 1.5,
                "ts_request_seconds_count": 1,
                "ts_outcomes_total cause=cancelled model_name=noop model_version=1.0 protocol=http": 1,
            },
        ),
        (
            lambda model: end_batch(model, 0.25, 0.5),
            {
                "PredictionTime Level=Model ModelName=noop": 250.0,
                "WorkerThreadTime Level=Host": 250.0,
                "ts_handler_seconds_sum": 0.25,
                "ts_handler_seconds_count": 1,
            },
        ),
        (
            lambda model: end_batch(model, 0.25, 0.2),  # the worker had the batch ahead
            {
                "PredictionTime Level=Model ModelName=noop": 250.0,
                "ts_handler_seconds_sum": 0.25,
                "ts_handler_seconds_count": 1,
            },
        ),
        (
            lambda model: end_job(model, 1.5, told=Cause.queue_full, failed=True),
            {
                "ts_inference_latency_microseconds": 1.5e6,
                "ts_request_seconds_sum": 1.5,
                "ts_request_seconds_count": 1,
                "ts_outcomes_total cause=queue_full model_name=noop model_version=1.0 protocol=http": 1,
            },
        ),
        (
            lambda model: end_job(model, 1.5, waited=0.002, by_default=True),
            {
                "ts_queue_latency_microseconds model_name=noop model_version=default": 2000.0,
                "QueueTime Level=Host": 2.0,
                "ts_queue_seconds_sum": 0.002,
                "ts_queue_seconds_count": 1,
                "ts_inference_latency_microseconds model_name=noop model_version=default": 1.5e6,
                "ts_request_seconds_sum": 1.5,
                "ts_request_seconds_count": 1,
                "ts_outcomes_total cause=answered model_name=noop model_version=1.0 protocol=http": 1,
            },
        ),
        (lambda model: model.by_version.requests_total.inc(), {"ts_inference_requests_total": 1}),
        (lambda model: model.worker_restarts.inc(), {"ts_worker_restarts_total": 1}),
        (lambda model: model.begun.append(3), {"ts_batch_size_sum": 3, "ts_batch_size_count": 1}),
        (lambda model: model.worker_thread_time.set(7), {"WorkerThreadTime Level=Host": 7}),
        (
            lambda model: model.worker_load_time("W-9000-noop_1.0", 31),
            {"WorkerLoadTime Level=Host WorkerName=W-9000-noop_1.0": 31},
        ),
        (
            lambda model: model.worker_gpu_memory("W-9000-noop_1.0", 3 << 30),
            {"ts_worker_gpu_memory_bytes Level=Host WorkerName=W-9000-noop_1.0": 3 << 30},
        ),
        (
            lambda model: (model.show(), model.sequences_closed[CloseReason.idle].inc()),
            {"ts_sequences_closed_total model_name=noop model_version=1.0 reason=idle": 1},
        ),
        (lambda model: model.queue_depth.read_from(lambda: 4), {"ts_queue_depth": 4}),
        (lambda model: model.open_sequences.read_from(lambda: 5), {"ts_open_sequences": 5}),
    ],
)
def test_what_is_observed_is_shown_where_it_belongs(
    metrics: ServerMetrics, act: Callable[[ModelMetrics], None], changed: dict[str, float]
) -> None:
    model = metrics.model("noop", "1.0")
    metrics.model("other", "1.0")
    act(model)
    shown = {name: value for name, value in scrape(metrics).items() if value and "_bucket" not in name}
    labels = " model_name=noop model_version=1.0"
    expected = {name if " " in name else name + labels: value for name, value in changed.items()}
    assert shown == pytest.approx(expected)


def test_buckets_accumulate(metrics: ServerMetrics) -> None:
    model = metrics.model("noop", "1.0")
    for size in (1, 8, 8, 600):
        model.begun.append(size)
    found = scrape(metrics)

    def bucket(bound: str) -> float:
        return found[f"ts_batch_size_bucket le={bound} model_name=noop model_version=1.0"]

    assert [bucket(bound) for bound in ("1.0", "4.0", "8.0", "512.0", "+Inf")] == [1, 1, 3, 3, 4]


def test_filter_by_sample_name(metrics: ServerMetrics) -> None:
    metrics.model("noop", "1.0").show()
    assert scrape(metrics, {"Requests2XX", "QueueTime"}).keys() == {"Requests2XX Level=Host", "QueueTime Level=Host"}
    assert scrape(metrics, {"ts_queue_seconds_sum"}).keys() == {
        "ts_queue_seconds_sum model_name=noop model_version=1.0"
    }
    assert exposed(metrics, {"nothing"}) == b""


def test_an_instrument_is_made_once(metrics: ServerMetrics) -> None:
    assert metrics.model("noop", "1.0") is metrics.model("noop", "1.0")
    metrics.model("noop", "1.0").by_version.requests_total.inc()
    metrics.model("noop", "2.0").by_default.requests_total.inc()
    metrics.model("noop", "1.0").by_default.requests_total.inc()
    counted = {name: value for name, value in scrape(metrics).items() if name.startswith("ts_inference_requests_total")}
    assert counted == {
        "ts_inference_requests_total model_name=noop model_version=1.0": 1,
        "ts_inference_requests_total model_name=noop model_version=2.0": 0,
        "ts_inference_requests_total model_name=noop model_version=default": 2,
    }


def test_a_forgotten_model_leaves_nothing(metrics: ServerMetrics) -> None:
    before = exposed(metrics)
    for version in ("1.0", "2.0"):
        metrics.model("noop", version).worker_load_time(f"W-{version}", 5)
    metrics.record_model_metrics("noop", [["Tokens", "Count", "counter", 3, [["ModelName", "noop"]], "id"]])
    metrics.forget("noop", "1.0")
    found = scrape(metrics)
    assert not any("model_version=1.0" in name or "W-1.0" in name for name in found)
    assert "WorkerLoadTime Level=Host WorkerName=W-2.0" in found
    assert "ts_inference_requests_total model_name=noop model_version=default" in found
    assert "Tokens ModelName=noop" in found
    metrics.forget("noop", "2.0")
    metrics.forget("noop", "2.0")
    assert exposed(metrics) == before


def test_a_worker_that_is_gone_for_good_leaves_nothing(metrics: ServerMetrics) -> None:
    model = metrics.model("noop", "1.0")
    model.show()
    before = exposed(metrics)
    model.worker_load_time("W-9000-noop_1.0", 5)
    model.worker_gpu_memory("W-9000-noop_1.0", 5)
    model.forget_worker("W-9000-noop_1.0")
    assert exposed(metrics) == before


def test_odd_names_are_escaped(metrics: ServerMetrics) -> None:
    odd = 'a"b\\c\nd=é'
    metrics.model(odd, "1.0").by_version.requests_total.inc()
    assert scrape(metrics)[f"ts_inference_requests_total model_name={odd} model_version=1.0"] == 1


def test_outcomes_are_counted_by_protocol_and_cause_and_go_with_their_model() -> None:
    metrics = server_metrics()
    model = metrics.model("noop", "1.0")
    end_job(model)
    end_job(model, told=404, failed=True)
    end_job(model, via="grpc", told=500)
    for _ in range(2):
        end_job(model, via="websocket", told=Cause.cancelled, failed=True)
    model_of = "model_name=noop model_version=1.0"
    assert {name: value for name, value in scrape(metrics).items() if name.startswith("ts_outcomes_total")} == {
        f"ts_outcomes_total cause=answered {model_of} protocol=http": 1,
        f"ts_outcomes_total cause=refused_by_handler {model_of} protocol=http": 1,
        f"ts_outcomes_total cause=handler_error {model_of} protocol=grpc": 1,
        f"ts_outcomes_total cause=cancelled {model_of} protocol=websocket": 2,
    }
    metrics.forget("noop", "1.0")
    assert not [name for name in scrape(metrics) if name.startswith("ts_outcomes_total")]


def test_a_plugin_adds_a_metric_with_a_name_of_its_own() -> None:
    metrics = server_metrics()
    asked = metrics.add(Family("guide_asked", Counter, "Count", "Guides that were asked for"))
    asked.child({"model_name": "m"}).inc(2)
    assert 'guide_asked{model_name="m",} 2.0\n' in list(metrics.expose({"guide_asked"}))
    for taken in ("guide_asked", "Requests2XX"):
        with pytest.raises(ValueError, match=f"There is a metric {taken} already"):
            metrics.add(Family(taken, Counter, "Count"))
