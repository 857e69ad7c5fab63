"""The boards, alerts and recording rules in ``deploy/`` against what a server under load really reports."""

import json
import math
import re
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.prometheus import DEPLOY, Prometheus
from tests.e2e.running_server import DEADLINE, ROOT, RunningServer, eventually, model_folder
from tests.e2e.stand_in_nvml import stand_in_nvml
from tests.programs import need_program

BOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
#: Values of the variables of the boards, as Grafana puts them into expressions where "All" is chosen.
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*", "$model": ".*", "$version": ".*"}
#: Series of features that this server does not use, or that begin with their first event.
OF_FEATURES = {
    *("ts_canary_decisions_total", "ts_rollouts_total", "ts_shadow_requests_total", "ts_journal_dropped_total"),
    *("ts_fleet_failures", "ts_fleet_errors_total", "ts_fleet_seconds_behind", "ts_fleet_untold"),
    *(
        "ts_redis_evicts",
        "ts_redis_evicted_keys_total",
        "ts_certificate_expiry_seconds",
        "ts_workers_given_up",
        "ts_snapshot_unwritten",
    ),
}
#: Labels that Prometheus adds to every series of a target.
ADDED = {"instance", "job"}

ADDING = """
from ts.handler_utils.utils import send_intermediate_predict_response


class AddingHandler:
    def initialize(self, context):
        self.totals = {}

    def handle(self, data, context):
        sums = [self.add(context.get_sequence_id(index), row["body"]) for index, row in enumerate(data)]
        for _ in range(2):
            send_intermediate_predict_response(["the sum is "] * len(data), context.request_ids, "", 200, context)
        return sums

    def add(self, sequence, text):
        self.totals[sequence] = self.totals.get(sequence, 0) + int(text)
        return str(self.totals[sequence])
"""

KEEPING = """
from ts.sequence import SequenceCache


class KeepingHandler:
    def initialize(self, context):
        self.totals = SequenceCache(context)

    def handle(self, data, context):
        return ["kept"] * len(data)
"""


@dataclass(frozen=True)
class Scene:
    """A server under load, and the Prometheus that watches it."""

    server: RunningServer
    prometheus: Prometheus


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("dashboards")
    config = "sequenceBatching: true\nbatchSize: 4\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 100\n"
    store = f"handler: {{cache: {{store: file, path: {directory / 'kept.db'}}}}}\n"
    (directory / "python").mkdir()
    (directory / "python" / "pynvml.py").write_text(stand_in_nvml(1))
    python = ":".join(map(str, (directory / "python", ROOT / "frontend", ROOT / "backend")))
    models = {
        "adding": model_folder(directory, "adding", ADDING, config),
        "keeping": model_folder(directory, "keeping", KEEPING, config + store),
    }
    with RunningServer(
        models,
        {"disable_system_metrics": "false", "metric_time_interval": 1, "drain_timeout": 1},
        {"PYTHONPATH": python},
    ) as server:
        server.wait_ready()
        stop = threading.Event()
        load = threading.Thread(target=send_requests, args=(server, stop))
        load.start()
        (directory / "prometheus").mkdir()
        try:
            with Prometheus(server.metrics.removeprefix("http://"), directory / "prometheus") as prometheus:
                watched = 'count_over_time(ts_http_requests_total{status="503"}[1m]) > 3'
                eventually(lambda: prometheus.values(watched), "Prometheus has scraped the server under load")
                yield Scene(server, prometheus)
        finally:
            stop.set()
            load.join(DEADLINE)


def send_requests(server: RunningServer, stop: threading.Event) -> None:
    """Send requests that succeed, are wrong, and fail, in sequences that end."""
    number = 0
    while not stop.wait(0.02):
        number += 1
        sequence = f"s{number // 5}"
        last = {"ts_request_sequence_end": "true"} if number % 5 == 4 else {}
        server.predict("adding", "1", sequence=sequence, headers=last)
        if number % 10 == 0:
            server.predict("adding", "not a number")
            late = {"ts_request_deadline_ms": "0.001", "ts_request_sequence_end": "true"}
            server.predict("adding", "1", sequence=f"late{number}", headers=late)
            server.predict("unknown", "1")


@dataclass(frozen=True)
class Expression:
    """A PromQL expression, where it stands, and the labels of its result that are shown."""

    where: str
    text: str
    labels: frozenset[str] = frozenset()


def board_expressions() -> list[Expression]:
    found = []
    for path in BOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                text = target["expr"]
                for name, value in VARIABLES.items():
                    text = text.replace(name, value)
                labels = frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"]))
                found.append(Expression(f"{path.name}: {panel['title']}", text, labels))
    return found


def rules(file: str) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / file).read_text())["groups"]
    listed: list[dict[str, Any]] = group["rules"]
    return listed


def rule_expressions() -> list[Expression]:
    recorded = [Expression(rule["record"], rule["expr"]) for rule in rules("recording-rules.yaml")]
    for rule in rules("alerts.yaml"):
        labels = frozenset(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        recorded.append(Expression(rule["alert"], rule["expr"], labels))
    return recorded


def named(expressions: list[Expression]) -> list[Any]:
    return [pytest.param(each, id=f"{each.where} {index}") for index, each in enumerate(expressions)]


def selected(text: str) -> tuple[list[tuple[str, set[str]]], set[str]]:
    """Return the metrics of an expression with the labels they are selected by, and the labels of aggregations."""
    selectors: list[tuple[str, set[str]]] = []
    grouped: set[str] = set()

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            selectors.append((node.name or "", {matcher.name for matcher in node.matchers.matchers}))
        elif isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            grouped.update(node.modifier.labels)

    promql_parser.walk(promql_parser.parse(text), visit)
    assert selectors
    return selectors, grouped


@pytest.fixture(scope="module")
def series(scene: Scene) -> dict[str, set[str]]:
    """The labels of every series that the server has, and of those that rules make of them."""
    text = requests.get(f"{scene.server.metrics}/metrics", timeout=DEADLINE).text
    found: dict[str, set[str]] = {"up": ADDED}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set(ADDED)).update(sample.labels)
    for rule in rules("recording-rules.yaml"):
        values = eventually(partial(scene.prometheus.values, rule["record"]), f"{rule['record']} is recorded")
        found[rule["record"]] = {label for labels, _ in values for label in labels}
    return found


@pytest.mark.parametrize("expression", named(board_expressions() + rule_expressions()))
def test_every_metric_and_label_exists(series: dict[str, set[str]], expression: Expression) -> None:
    selectors, grouped = selected(expression.text)
    if {name for name, _ in selectors} & OF_FEATURES:
        return  # alerts_test.yaml has these
    for name, matched in selectors:
        assert name in series, f"the server has no series {name}"
        assert matched <= series[name], f"{name} has no label {matched - series[name]}"
    labels = set().union(*(series[name] for name, _ in selectors))
    assert grouped <= labels, f"no series has the label {grouped - labels}"
    assert expression.labels <= (grouped or labels), f"the result has no label {expression.labels - labels}"


@pytest.mark.parametrize("expression", named(board_expressions()))
def test_every_panel_shows_something(scene: Scene, expression: Expression) -> None:
    def shown() -> list[dict[str, str]]:
        return [labels for labels, value in scene.prometheus.values(expression.text) if not math.isnan(value)]

    for labels in eventually(shown, f"{expression.text} has a result"):
        assert expression.labels <= set(labels)


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_the_lists_of_a_board_are_not_empty(scene: Scene, path: Path) -> None:
    for variable in json.loads(path.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
            assert found is not None
            selector = found[1].replace("$model", ".*")
            assert any(label.get(found[2]) for label in scene.prometheus.get("series", **{"match[]": selector}))


def test_prometheus_takes_the_rules_and_they_raise_what_the_load_deserves(scene: Scene) -> None:
    groups = scene.prometheus.get("rules")["groups"]
    health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
    assert set(health.values()) == {"ok"}, health
    active = {alert["labels"]["alertname"] for alert in scene.prometheus.get("alerts")["alerts"]}
    deserved = {"DeadlinesMissed", "ModelFails", "ModelFailsSlowly", "RequestsFail"}
    assert active <= {*deserved, "HostMemoryFull", "DiskFull", "RequestsWaitLong"}
    eventually(
        lambda: scene.prometheus.values('ALERTS{alertname="ModelFails", alertstate="firing"}'),
        "handlers that fail are noticed",
    )


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_grafana_can_lay_the_board_out(path: Path) -> None:
    board = json.loads(path.read_text())
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"] and panel["targets"] and panel["fieldConfig"]["defaults"]["unit"]
            used = set(re.findall(r"\$(\w+)", json.dumps([target["expr"] for target in panel["targets"]])))
            assert used <= {variable["name"] for variable in board["templating"]["list"]} | {"__rate_interval"}


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [need_program("promtool"), *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=DEADLINE, check=False)


def test_promtool_takes_the_configuration_and_the_rules() -> None:
    checked = promtool("check", "config", "--lint-fatal", str(DEPLOY / "prometheus.yaml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    cases = yaml.safe_load((Path(__file__).parent / "alerts_test.yaml").read_text())
    tested = {
        check["alertname"] for test in cases["tests"] for check in test["alert_rule_test"] if "exp_alerts" in check
    }
    assert tested == {rule["alert"] for rule in rules("alerts.yaml")}
    cases["rule_files"] = [str(DEPLOY / name) for name in cases["rule_files"]]
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(cases))
    tested_rules = promtool("test", "rules", str(tmp_path / "test.yaml"))
    assert tested_rules.returncode == 0, tested_rules.stdout + tested_rules.stderr


def test_promtool_finds_no_fault_with_names_that_are_not_torchserves(scene: Scene) -> None:
    text = requests.get(f"{scene.server.metrics}/metrics", timeout=DEADLINE).text
    checked = promtool("check", "metrics", text=text)
    at_fault = {line.split(" ", 1)[0] for line in checked.stderr.splitlines()}
    assert {name for name in at_fault if name.startswith("ts_")} == {
        "ts_inference_latency_microseconds",
        "ts_queue_latency_microseconds",
        "ts_worker_gpu_memory_bytes",  # its labels are those of TorchServe's series of workers
    }, checked.stderr


def test_the_document_says_what_to_do_about_every_alert() -> None:
    text = (ROOT / "docs" / "dashboards.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [rule["alert"] for rule in rules("alerts.yaml")]
