"""Where metrics go: metrics.yaml, the logs of the modes log and legacy, and a script that measures the host."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.running_server import HANDLERS, ROOT, RunningServer, eventually, model_folder

HANDLER = """
from ts.metrics.dimension import Dimension
from ts.metrics.metric_type_enum import MetricTypes


class MeteredHandler:
    def initialize(self, context):
        self.listed = context.metrics.get_metric("InferenceTimeInMS", MetricTypes.HISTOGRAM)

    def handle(self, data, context):
        metrics = context.metrics
        for index, row in enumerate(data):
            self.listed.add_or_update(2, [context.model_name, "Model"], context.get_request_id(index))
            metrics.add_counter("RowsRead", 1, index)
            metrics.add_size("SizeOfImage", 3, index, "MB", [Dimension("Format", "png")], MetricTypes.COUNTER)
            metrics.add_counter("NobodyListsMe", 1)
        return ["ok"] * len(data)
"""

METRICS_YAML = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"

ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level, "Hostname"]
    - name: ts_inference_requests_total
      unit: Requests
      dimensions: ["model", "version", "host"]
  gauge:
    - name: CPUUtilization
      unit: Percent
      dimensions: [*level, "Hostname"]
    - name: Temperature
      unit: Celsius
      dimensions: ["Place", "Hostname"]

model_metrics:
  counter:
    - name: RowsRead
      unit: Count
      dimensions: [*model_name, *level]
  gauge:
    - name: SizeOfImage
      unit: Megabytes
      dimensions: ["Kind", *model_name, *level]
    - name: PredictionTime
      unit: ms
      dimensions: [*model_name, *level]
  histogram:
    - name: InferenceTimeInMS
      unit: ms
      dimensions: [*model_name, *level]
"""

SCRIPT = """
import sys
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric

assert sys.stdin.readline().strip().isdigit()
print(Metric("CPUUtilization", 12.5, "percent", [Dimension("Level", "Host")]))
print(Metric("Temperature", float(sys.argv[1]), "Celsius", [Dimension("Place", "rack")]))
print(Metric("NotListed", 1, "count", []))
print()
print("4711:1000")
"""

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{3} - "
JOB_ID = r"[0-9a-f-]{36}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("metered")
    model_folder(directory, "metered", HANDLER)
    (directory / "metrics.yaml").write_text(METRICS_YAML)
    (directory / "measure.py").write_text(SCRIPT)
    return directory


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[RunningServer]:
    properties = {
        "metrics_mode": "log",
        "metrics_config": place / "metrics.yaml",
        "disable_system_metrics": "false",
        "metric_time_interval": 1,
        "system_metrics_cmd": f"{place / 'measure.py'} 21.5",
        "drain_timeout": 1,
    }
    with RunningServer({"metered": place / "metered"}, properties) as running:
        running.wait_ready()
        for _ in range(3):
            assert running.predict("metered", "x").text == "ok"
        yield running


def shown(server: RunningServer) -> dict[str, float]:
    """Return what /metrics shows: name and labels, without the host's name, to value."""
    text = requests.get(f"{server.metrics}/metrics", timeout=180).text
    return {
        f"{sample.name.removesuffix('_total')} {labels}".strip(): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        for labels in [" ".join(f"{k}={v}" for k, v in sample.labels.items() if k.lower() not in ("hostname", "host"))]
    }


def lines(server: RunningServer, name: str) -> list[str]:
    log = server.directory / "logs" / name
    return log.read_text().splitlines() if log.exists() else []


def matching(server: RunningServer, log: str, pattern: str) -> list[re.Match[str]]:
    return [found for line in lines(server, log) if (found := re.fullmatch(TIME + pattern, line))]


def test_only_what_the_file_lists_is_shown_and_as_it_says(server: RunningServer) -> None:
    found = eventually(lambda: shown(server) if "Temperature Place=rack" in shown(server) else None, "it is measured")
    model = "ModelName=metered Level=Model"
    assert found["Requests2XX Level=Host"] >= 3
    assert found["ts_inference_requests model=metered version=default"] == 3
    assert found[f"RowsRead {model}"] == 3
    assert found[f"SizeOfImage Kind=png {model}"] == 3
    assert found[f"PredictionTime {model}"] > 0
    assert found[f"InferenceTimeInMS_count {model}"] == 3
    assert found[f"InferenceTimeInMS_sum {model}"] == 6
    names = {re.sub("_(bucket|count|sum)$", "", each.split()[0]) for each in found}
    assert names == {
        *("Requests2XX", "ts_inference_requests", "CPUUtilization", "Temperature"),
        *("RowsRead", "SizeOfImage", "PredictionTime", "InferenceTimeInMS"),
        # What is not measured of models or hosts is always shown.
        *("ts_connections", "ts_connections_limit", "ts_refusals", "ts_snapshot_unwritten"),
    }


def test_a_metric_that_is_not_listed_is_told_of_once(server: RunningServer) -> None:
    told = [line for line in server.log().splitlines() if "NobodyListsMe" in line]
    assert len(told) == 1
    assert "model_metrics_auto_detect=true" in told[0]


def test_a_script_measures_the_host(server: RunningServer) -> None:
    found = eventually(lambda: shown(server) if "Temperature Place=rack" in shown(server) else None, "it is measured")
    assert found["Temperature Place=rack"] == 21.5
    assert found["CPUUtilization Level=Host"] == 12.5
    eventually(lambda: server.describe("metered")[0]["workers"][0]["memoryUsage"] > 0, "the worker is measured")


def test_every_metric_of_a_handler_is_a_line_of_the_log(server: RunningServer) -> None:
    model = r"\|#ModelName:metered,Level:Model\|#hostname:[^,]+"
    end = rf",requestID:({JOB_ID}),timestamp:\d{{10}}"

    def ids(pattern: str) -> list[str]:
        def all_three() -> list[str] | None:
            found = [found[1] for found in matching(server, "model_metrics.log", pattern)]
            return found if len(found) >= 3 else None

        return eventually(all_three, f"there are three lines such as {pattern}")

    rows = ids(rf"RowsRead\.Count:1\.0{model}{end}")
    assert len(rows) == len(set(rows)) == 3
    assert ids(rf"InferenceTimeInMS\.ms:2\.0{model}{end}") == rows
    assert ids(rf"PredictionTime\.ms:[0-9.e-]+{model}{end}") == rows
    size = rf"SizeOfImage\.Megabytes:3\.0\|#Kind:png,ModelName:metered,Level:Model\|#hostname:[^,]+{end}"
    assert ids(size) == rows
    assert "NobodyListsMe" not in "".join(lines(server, "model_metrics.log"))


def test_the_lines_of_the_server_add_up_to_what_is_counted(server: RunningServer) -> None:
    end = r"\|#hostname:[^,]+,timestamp:\d{10}"

    def total(pattern: str) -> float:
        return sum(float(found[1]) for found in matching(server, "ts_metrics.log", pattern))

    requests_total = rf"ts_inference_requests_total\.Requests:([0-9.]+)\|#model:metered,version:default{end}"
    eventually(lambda: total(requests_total) == 3, "the three predictions are in the log")
    eventually(lambda: total(rf"Requests2XX\.Count:([0-9.]+)\|#Level:Host{end}") >= 3, "their answers are, too")
    again = rf"CPUUtilization\.Percent:(12\.5)\|#Level:Host{end}"
    eventually(lambda: total(again) >= 25, "a gauge is written again each time it is measured")


def test_each_request_has_the_lines_that_torchserve_writes(server: RunningServer) -> None:
    end = r"\|#hostname:[^,]+,timestamp:\d{10}"
    of_model = rf"ts_inference_requests_total\.Requests:1\.0\|#model:metered,version:default{end}"
    eventually(lambda: len(matching(server, "ts_metrics.log", of_model)) == 3, "each request has its line")
    answers = rf"Requests2XX\.Count:1\.0\|#Level:Host{end}"
    eventually(lambda: len(matching(server, "ts_metrics.log", answers)) >= 3, "each answer has its line")


def test_metrics_are_on_standard_output_as_torchserve_prints_them(server: RunningServer) -> None:
    level = TIME.removesuffix(" - ") + r" \[INFO \]"
    of_host = rf"{level} main TS_METRICS - Requests2XX\.Count:\d+\.0\|#Level:Host\|#hostname:[^,]+,timestamp:\d+"
    of_model = rf"{level} main MODEL_METRICS - PredictionTime\.ms:([\d.e-]+)\|#ModelName:metered,Level:Model\|#.*"

    def printed(pattern: str) -> list[str]:
        return [line for line in server.log().splitlines() if re.fullmatch(pattern, line)]

    eventually(lambda: printed(of_host), "a metric of the server is printed")
    eventually(lambda: len(printed(of_model)) == 3, "the three predictions are, too")
    # This is how TorchServe's own benchmark takes a value out of what the server has printed.
    (value, *_) = [line.split("|")[0].split(":")[3].strip() for line in printed(of_model)]
    assert float(value) > 0
    assert "|#Level:" not in (server.directory / "logs" / "ts_log.log").read_text()


def test_requests_are_in_the_access_log_by_default(server: RunningServer) -> None:
    answered = r'/127\.0\.0\.1:\d+ "POST /predictions/metered HTTP/1\.1" 200 \d+'
    eventually(lambda: len(matching(server, "access_log.log", answered)) == 3, "the three requests are logged")
    assert len(re.findall(rf"\[INFO \] main ACCESS_LOG - {answered}\n", server.log())) == 3


def test_legacy_shows_three_series_and_logs_the_others(place: Path) -> None:
    properties = {"metrics_mode": "legacy", "drain_timeout": 1}
    with RunningServer({"echo": HANDLERS / "echo"}, properties) as server:
        server.wait_ready()
        assert server.predict("echo", "x").status_code == 200
        names = {each.split()[0] for each in shown(server)}
        assert names == {
            "ts_inference_requests",
            "ts_inference_latency_microseconds",
            "ts_queue_latency_microseconds",
        }
        server.terminate()
        # What was not written yet is when the server ends.
        text = "\n".join(lines(server, "ts_metrics.log"))
        assert re.search(r"Requests2XX\.Count:1\.0\|#Level:Host\|#hostname:", text)
        assert "ts_inference_latency_microseconds" not in text
        assert re.search(r"QueueTime\.Milliseconds:[0-9.e-]+\|#Level:Host\|#hostname:", text)
        assert "ts_inference_requests_total" not in text
        assert "PredictionTime.ms:" in "\n".join(lines(server, "model_metrics.log"))


def test_prometheus_mode_leaves_the_metric_logs_empty(place: Path) -> None:
    with RunningServer({"echo": HANDLERS / "echo"}, {"metrics_mode": "prometheus", "drain_timeout": 1}) as server:
        server.wait_ready()
        server.predict("echo", "x")
        server.terminate()
        sizes = {each.name: each.stat().st_size for each in (server.directory / "logs").glob("*metrics*")}
        assert sizes == {"ts_metrics.log": 0, "model_metrics.log": 0}


def test_a_summary_has_no_lines_for_single_requests() -> None:
    properties = {"metric_log_lines": "summary", "drain_timeout": 1}
    with RunningServer({"echo": HANDLERS / "echo"}, properties) as server:
        server.wait_ready()
        for _ in range(20):
            assert server.predict("echo", "x").status_code == 200
        server.terminate()
        # What was not written yet is when the server ends.
        found = matching(server, "ts_metrics.log", r"ts_inference_requests_total\.Count:([\d.]+)\|#.*")
        assert sum(float(each[1]) for each in found) == 20
        assert len(found) < 20


def test_the_times_of_a_request_are_those_that_its_client_sees() -> None:
    with RunningServer({"echo": HANDLERS / "echo"}) as server:
        server.wait_ready()
        for _ in range(3):
            assert server.predict("echo", "x").status_code == 200
        for name, unit in (
            ("ts_inference_latency_microseconds", "Microseconds"),
            ("ts_queue_latency_microseconds", "Microseconds"),
            ("QueueTime", "Milliseconds"),
            ("WorkerThreadTime", "Milliseconds"),
        ):
            pattern = rf"{name}\.{unit}:(\d+\.\d{{3}})\|#[^|]+\|#hostname:[^,]+,timestamp:\d{{10}}"

            def values(pattern: str = pattern) -> list[float]:
                return [float(found[1]) for found in matching(server, "ts_metrics.log", pattern)]

            eventually(lambda: len(values()) == 3, f"each request has a line of {name}")
        latencies = matching(server, "ts_metrics.log", r"ts_inference_latency_microseconds\.Microseconds:([\d.]+)\|.*")
        total = server.metric("ts_inference_latency_microseconds_total", model_name="echo", model_version="default")
        assert sum(float(each[1]) for each in latencies) == pytest.approx(total, abs=0.01)


@pytest.mark.parametrize("auto_detect", ["true", "false"])
def test_auto_detection_adds_what_the_file_lacks(place: Path, auto_detect: str) -> None:
    properties = {
        "metrics_mode": "prometheus",
        "metrics_config": place / "metrics.yaml",
        "model_metrics_auto_detect": auto_detect,
        "drain_timeout": 1,
    }
    with RunningServer({"metered": place / "metered"}, properties) as server:
        server.wait_ready()
        assert server.predict("metered", "x").text == "ok"
        found = shown(server)
        assert found["RowsRead ModelName=metered Level=Model"] == 1
        assert ("NobodyListsMe ModelName=metered Level=Model" in found) == (auto_detect == "true")
        assert "QueueTime Level=Host" not in found


def test_the_example_shows_what_there_is_without_a_file(place: Path) -> None:
    def series(properties: dict[str, object]) -> set[str]:
        with RunningServer({"echo": HANDLERS / "echo"}, {"drain_timeout": 1, **properties}) as server:
            server.wait_ready()
            assert server.predict("echo", "x").status_code == 200
            asked_too_early = "ts_http_requests method=GET route=/ready status=503"  # there in some runs
            return set(shown(server)) - {asked_too_early}

    assert series({"metrics_config": ROOT / "configs" / "metrics.yaml"}) == series({})


def test_a_wrong_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_text("ts_metrics:\n  counter:\n    - name: Requests2XX\n      unit: ''\n")
    server = RunningServer({}, {"metrics_config": tmp_path / "metrics.yaml"})
    done = subprocess.run(
        server.command,
        cwd=server.directory,
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    said = "line 1: ts_metrics.counter[0].unit is '' (str), it must be a text that is not empty"
    assert f"metrics_config = {tmp_path / 'metrics.yaml'}: {said}" in done.stdout
