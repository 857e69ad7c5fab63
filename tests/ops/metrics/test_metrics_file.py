"""metrics.yaml: what it means, and what its author is told when it is wrong."""

from pathlib import Path

import pytest

from torchserve_py.base.metrics.catalog import MODEL_METRICS, SERVER_METRICS, Declaration
from torchserve_py.base.metrics.metrics_plan import MetricsConfigError
from torchserve_py.ops.metrics.metrics_file import read_metrics_config

EXAMPLE = Path(__file__).parents[3] / "configs" / "metrics.yaml"

TORCHSERVES = """
dimensions:
  - &model_name "ModelName"
  - &level "Level"
  - &hostname "Hostname"
ts_metrics:
  counter:
    - name: Requests2XX
      unit: Count
      dimensions: [*level, *hostname]
  gauge:
    - name: QueueTime
      unit: Milliseconds
      dimensions: [*level, *hostname]
  histogram:
    - name: CustomOfTheServer
      unit: ms
      dimensions: ["a", *hostname]
model_metrics:
  counter:
    - name: InferenceTimeInMS
      unit: ms
      dimensions: [*model_name, *level]
    - name: Plain
      unit: Count
"""


def read(tmp_path: Path, text: str):
    path = tmp_path / "metrics.yaml"
    path.write_text(text)
    return read_metrics_config(path)


def test_a_file_as_torchserve_has_them(tmp_path: Path) -> None:
    config = read(tmp_path, TORCHSERVES)
    assert config.server == {
        "Requests2XX": Declaration("Requests2XX", "counter", "Count", ("Level", "Hostname")),
        "QueueTime": Declaration("QueueTime", "gauge", "Milliseconds", ("Level", "Hostname")),
        "CustomOfTheServer": Declaration("CustomOfTheServer", "histogram", "ms", ("a", "Hostname")),
    }
    assert config.model == {
        "InferenceTimeInMS": Declaration("InferenceTimeInMS", "counter", "ms", ("ModelName", "Level")),
        "Plain": Declaration("Plain", "counter", "Count", ()),
    }


def test_the_example_lists_exactly_what_there_is(tmp_path: Path) -> None:
    config = read_metrics_config(EXAMPLE)
    assert {name: each[:4] for name, each in config.server.items()} == {
        name: each[:4] for name, each in SERVER_METRICS.items()
    }
    assert config.model == MODEL_METRICS


def test_sections_may_be_missing_or_empty(tmp_path: Path) -> None:
    config = read(tmp_path, "ts_metrics:\nmodel_metrics:\n  gauge:\n")
    assert (config.server, config.model) == ({}, {})


ONE = "model_metrics:\n  counter:\n    - "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it must be a mapping with ts_metrics and model_metrics"),
        ("- a", "line 1: the file must hold 'key: value' lines, not a list"),
        ("a: [", "not valid YAML: while parsing"),
        ("mode: log", "line 1: mode is not known; known are dimensions, ts_metrics, model_metrics"),
        ("ts_metrics: [1]", "ts_metrics is [1] (list), it must be a map with counter, gauge, histogram"),
        ("ts_metrics: {summary: []}", "ts_metrics.summary is not known; known are counter, gauge, histogram"),
        ("ts_metrics: {gauge: 3}", "ts_metrics.gauge is 3 (int), it must be a list of metrics"),
        (
            ONE + "Tokens",
            "model_metrics.counter[0] is 'Tokens' (str), it must be a map with name, unit and dimensions",
        ),
        (ONE + "{unit: s}", "model_metrics.counter[0].name is missing"),
        (ONE + "{name: ' ', unit: s}", "counter[0].name is ' ' (str), it must be a text that is not empty"),
        (ONE + "{name: 7, unit: s}", "counter[0].name is 7 (int), it must be a text that is not empty"),
        (ONE + "{name: T}", "model_metrics.counter[0].unit is missing"),
        (ONE + "{name: T, unit: ''}", "model_metrics.counter[0].unit is '' (str), it must be a text"),
        (ONE + "{name: T, unit: s, buckets: []}", "counter[0].buckets is not known; known are name, unit, dimensions"),
        (
            ONE + "{name: T, unit: s, dimensions: a}",
            "counter[0].dimensions is 'a' (str), it must be a list of names, each once",
        ),
        (
            ONE + "{name: T, unit: s, dimensions: [1]}",
            "counter[0].dimensions is [1] (list), it must be a list of names",
        ),
        (
            ONE + "{name: T, unit: s, dimensions: [a, a]}",
            "dimensions is ['a', 'a'] (list), it must be a list of names, each once",
        ),
        (ONE + "{name: T, unit: s, dimensions: [Hostname]}", "the dimension Hostname is added and must not be listed"),
        (ONE + "{name: T, unit: s}\n    - {name: T, unit: s}", "T and T are one metric for Prometheus"),
        (ONE + "{name: a-b, unit: s}\n    - {name: a_b, unit: s}", "a_b and a-b are one metric for Prometheus"),
        (
            "ts_metrics: {gauge: [{name: A, unit: s}]}\n" + ONE + "{name: A, unit: s}",
            "A and A are one metric for Prometheus; keep one of them",
        ),
        (
            "ts_metrics: {gauge: [{name: Requests2XX, unit: Count, dimensions: [a, b]}]}",
            "ts_metrics lists Requests2XX as a gauge; the server has a counter",
        ),
        (
            "ts_metrics: {gauge: [{name: GPUUtilization, unit: Percent, dimensions: [a, b]}]}",
            "ts_metrics, GPUUtilization: 2 dimensions, but it has 3: Level, DeviceId, Hostname",
        ),
        (
            ONE + "{name: PredictionTime, unit: ms}",
            "model_metrics, PredictionTime: 0 dimensions, but it has 2: ModelName, Level",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(MetricsConfigError) as error:
        read(tmp_path, text)
    assert message in str(error.value)


def test_everything_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(MetricsConfigError) as error:
        read(tmp_path, "mode: log\nts_metrics: {gauge: 3}\n" + ONE + "{name: T, unit: s, dimensions: [Hostname]}")
    assert all(each in str(error.value) for each in ("mode is not known", "gauge is 3", "Hostname is added"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MetricsConfigError, match="it cannot be read"):
        read_metrics_config(tmp_path)
