"""/metrics as Prometheus reads it: every series from the start, right counts, and the handler's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.running_server import HANDLERS, RunningServer, eventually, model_folder

MEASURING = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class MeasuringHandler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        metrics = context.metrics
        for index, row in enumerate(data):
            if row["body"] == "fail":
                raise ValueError("as asked")
            metrics.add_counter("TokensRead", len(row["body"]), index)
            metrics.add_time("Thinking", 1.5, index)
            metrics.add_size("Memory-Used", 3, index, "MB", [Dimension("Pool", "main")])
            metrics.add_percent("Load", 50.0, index)
            metrics.add_metric("Lengths", 0.3, "count", index, metric_type=MetricTypes.HISTOGRAM)
        return ["ok"] * len(data)
"""

HOST = [
    "Requests2XX",
    "Requests4XX",
    "Requests5XX",
    "QueueTime",
    "WorkerThreadTime",
    "CPUUtilization",
    "MemoryUsed",
    "MemoryAvailable",
    "MemoryUtilization",
    "DiskUsage",
    "DiskAvailable",
    "DiskUtilization",
]

OF_A_MODEL = [
    "ts_inference_requests_total",
    "ts_inference_latency_microseconds",
    "ts_queue_latency_microseconds",
    "ts_queue_seconds_count",
    "ts_handler_seconds_count",
    "ts_request_seconds_count",
    "ts_batch_size_count",
    "ts_queue_depth",
    "ts_open_sequences",
    "ts_worker_restarts_total",
]

REASONS = {"ended", "idle", "timeout", "evicted", "worker_lost", "suspended", "unregistered", "drained"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models"), "measuring", MEASURING)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RunningServer]:
    models = {"measuring": folder, "stateful": HANDLERS / "stateful"}
    with RunningServer(models, {"drain_timeout": 1, "metrics_mode": "prometheus"}) as running:
        running.wait_ready()
        yield running


Samples = dict[str, list[tuple[dict[str, str], float]]]


def text_of(server: RunningServer, *names: str) -> str:
    response = requests.get(f"{server.metrics}/metrics", params=[("name[]", name) for name in names], timeout=180)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.text


def families(text: str) -> dict[str, Metric]:
    parsed = list(text_string_to_metric_families(text))
    assert len({family.name for family in parsed}) == len(parsed)
    return {family.name: family for family in parsed}


def samples(server: RunningServer, *names: str) -> Samples:
    """Return labels and values by the name of the sample."""
    text = text_of(server, *names)
    written = {line.partition("{")[0] for line in text.splitlines()}
    found: Samples = {}
    for family in families(text).values():
        for sample in family.samples:
            # The parser puts _total behind the names of counters that lack it, as TorchServe's do.
            name = sample.name if sample.name in written else sample.name.removesuffix("_total")
            found.setdefault(name, []).append((sample.labels, sample.value))
    return found


def total(found: Samples, name: str, **labels: str) -> float:
    """Return the sum of a metric over all series that have these labels, 0 if there is none yet."""
    return sum(value for present, value in found.get(name, ()) if labels.items() <= present.items())


def test_every_series_is_there_before_the_first_request(folder: Path) -> None:
    with RunningServer({"measuring": folder, "stateful": HANDLERS / "stateful"}, {"drain_timeout": 1}) as server:
        server.wait_ready()
        found = samples(server)
    for name in HOST:
        [(labels, _)] = found[name]
        assert set(labels) == {"Level", "Hostname"}
        assert labels["Level"] == "Host"
    for name in OF_A_MODEL:
        by_model = {labels["model_name"]: value for labels, value in found[name]}
        assert by_model == {"measuring": 0, "stateful": 0}, name
    for name in ("HandlerTime", "PredictionTime"):
        assert {labels["ModelName"] for labels, _ in found[name]} == {"measuring", "stateful"}
    for model in ("measuring", "stateful"):
        closed = [labels for labels, _ in found["ts_sequences_closed_total"] if labels["model_name"] == model]
        assert {labels["reason"] for labels in closed} == REASONS
    assert {labels["WorkerName"].split("-")[-1] for labels, _ in found["WorkerLoadTime"]} == {
        "measuring_1.0",
        "stateful_1.0",
    }


def test_counts_after_known_traffic(server: RunningServer) -> None:
    series: list[tuple[str, dict[str, str]]] = [
        ("Requests2XX", {}),
        ("Requests4XX", {}),
        ("Requests5XX", {}),
        ("ts_inference_requests_total", {"model_name": "measuring", "model_version": "default"}),
        ("ts_inference_requests_total", {"model_name": "measuring", "model_version": "1.0"}),
        ("ts_request_seconds_count", {"model_name": "measuring"}),
        ("ts_handler_seconds_count", {"model_name": "measuring"}),
        ("ts_batch_size_sum", {"model_name": "measuring"}),
        ("ts_open_sequences", {"model_name": "stateful"}),
        ("ts_sequences_closed_total", {"model_name": "stateful", "reason": "ended"}),
        ("ts_sequences_closed_total", {"model_name": "stateful", "reason": "idle"}),
    ]
    before = samples(server)
    for _ in range(3):
        assert server.predict("measuring", "four").status_code == 200
    assert server.predict("measuring/1.0", "four").status_code == 200
    assert server.predict("measuring", "fail").status_code == 503
    assert server.predict("ghost", "").status_code == 404
    for number in ("1", "2", "0"):
        assert server.predict("stateful", number, sequence="s").status_code == 200
    assert server.predict("stateful", "1", sequence="open").status_code == 200
    after = samples(server)

    grown = [total(after, name, **labels) - total(before, name, **labels) for name, labels in series]
    # Among the 2XX is the answer that told what was before; that of now is counted after it is made.
    assert grown == [3 + 1 + 4 + 1, 1, 1, 4, 1, 5, 5, 5, 1, 1, 0]
    assert total(after, "ts_inference_latency_microseconds", model_name="measuring") > 0
    assert total(after, "PredictionTime", ModelName="measuring") > 0
    assert total(after, "ts_queue_depth") == 0


def test_histograms_are_cumulative_and_complete(server: RunningServer) -> None:
    server.predict("measuring", "x")
    for name in ("ts_queue_seconds", "ts_handler_seconds", "ts_request_seconds", "ts_batch_size"):
        family = families(text_of(server, f"{name}_bucket", f"{name}_count", f"{name}_sum"))[name]
        assert family.type == "histogram"
        ours = [sample for sample in family.samples if sample.labels["model_name"] == "measuring"]
        buckets = [sample.value for sample in ours if sample.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == next(sample.value for sample in ours if sample.name == f"{name}_count") > 0


def test_name_chooses_series(server: RunningServer) -> None:
    assert set(samples(server, "Requests2XX", "ts_queue_depth")) == {"Requests2XX", "ts_queue_depth"}
    assert samples(server, "nothing_of_that_name") == {}


def test_metrics_of_a_handler(server: RunningServer, folder: Path) -> None:
    server.register(folder, model_name="reporting")
    for text in ("four", "seventy"):
        server.predict("reporting", text)
    found = samples(server)
    ours = {"ModelName": "reporting", "Level": "Model"}
    assert total(found, "TokensRead", **ours) == 4 + 7
    assert total(found, "Thinking", **ours) == 1.5
    assert total(found, "Load", **ours) == 50
    assert total(found, "Memory_Used", Pool="main", **ours) == 3
    assert total(found, "Lengths_count", **ours) == 2
    assert families(text_of(server))["Lengths"].type == "histogram"


def test_series_go_with_their_model(server: RunningServer, folder: Path) -> None:
    server.register(folder, model_name="leaving")
    server.predict("leaving", "x")
    assert 'ModelName="leaving"' in text_of(server)
    assert server.unregister("leaving").status_code == 200
    assert "leaving" not in text_of(server)


def test_a_worker_that_dies_is_counted(server: RunningServer, folder: Path) -> None:
    server.register(folder, model_name="dying")
    pid = server.describe("dying")[0]["workers"][0]["pid"]
    next(worker for worker in server.workers() if worker.pid == pid).kill()

    def restarts() -> float:
        return total(samples(server, "ts_worker_restarts_total"), "ts_worker_restarts_total", model_name="dying")

    eventually(lambda: restarts() == 1, "the restart is counted")
    assert server.predict("dying", "x").text == "ok"


def test_only_get_and_head(server: RunningServer) -> None:
    assert requests.post(f"{server.metrics}/metrics", timeout=180).status_code == 405
    head = requests.head(f"{server.metrics}/metrics", timeout=180)
    assert (head.status_code, head.content) == (200, b"")
    assert requests.get(f"{server.metrics}/nowhere", timeout=180).status_code == 404


def test_system_metrics_are_collected(folder: Path) -> None:
    properties = {"drain_timeout": 1, "disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer({"measuring": folder}, properties) as server:
        server.wait_ready()
        eventually(lambda: total(samples(server), "MemoryUsed") > 0, "the host's memory is measured")
        assert 0 < total(samples(server), "MemoryUtilization") <= 100
        assert 0 < total(samples(server), "DiskUtilization") <= 100
        eventually(lambda: server.describe("measuring")[0]["workers"][0]["memoryUsage"] > 0, "the worker is measured")
