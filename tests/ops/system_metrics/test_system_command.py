"""A script that measures the host: what of its output counts."""

from pathlib import Path

import pytest
from tests.base.metrics.exposition import HOST, scrape

from torchserve_py.base.metrics.catalog import HOST_GAUGES
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.serving.usage import Usage
from torchserve_py.ops.system_metrics.system import SystemMetrics
from torchserve_py.ops.system_metrics.system_command import HostReading, SystemCommand, parse_line


@pytest.mark.parametrize(
    ("line", "reading"),
    [
        (
            "CPUUtilization.Percent:12.5|#Level:Host|#hostname:box,1646686978",
            HostReading("CPUUtilization", ("Host",), 12.5, "box"),
        ),
        (
            "[METRICS]GPU.Percent:1e2|#Level:Host,DeviceId:0|#type:GAUGE|#hostname:box,1,some-id",
            HostReading("GPU", ("Host", "0"), 100, "box"),
        ),
        ("A.b:-1|#|#hostname:box,1", HostReading("A", (), -1, "box")),
        ("A.b:1|#Path:a:b,Level:Host|#hostname:box,1", HostReading("A", ("Host",), 1, "box")),
        ("A.b:many|#|#hostname:box,1", None),
        ("Collecting", None),
    ],
)
def test_lines(line: str, reading: HostReading | None) -> None:
    assert parse_line(line) == reading


def script(tmp_path: Path, source: str) -> str:
    (tmp_path / "a script.py").write_text(source)
    return f"'{tmp_path / 'a script.py'}'"


def test_a_scripts_output_counts_up_to_an_empty_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = (
        "import sys\n"
        "pids = sys.stdin.readline().strip()\n"
        "print(f'A.b:{len(sys.argv)}|#Pids:{pids}|#hostname:h,1')\n"
        "print('odd')\nprint()\nprint('B.b:1|#|#hostname:h,1')\n"
        "sys.exit('something broke')"
    )
    command = SystemCommand(script(tmp_path, source) + " --gpu 1", limit=60)
    assert [(each.name, each.value) for each in command.run([7])] == [("A", 3)]
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "system_metrics_cmd exited with 1: something broke",
        "system_metrics_cmd printed a line that is no metric: odd",
    ]


def test_a_script_finds_the_metrics_api(tmp_path: Path) -> None:
    source = "from ts.metrics.metric import Metric\nprint(Metric('A', 2, 'percent', []))"
    (reading,) = SystemCommand(script(tmp_path, source), limit=60).run([])
    assert (reading.name, reading.value) == ("A", 2)


def test_a_script_that_hangs_or_is_missing_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hanging = SystemCommand(script(tmp_path, "import time; time.sleep(600)"), limit=0.1)
    assert hanging.run([]) == []
    assert SystemCommand(str(tmp_path / "none.py"), limit=60).run([]) == []
    assert "timed out" in caplog.messages[0]
    assert "none.py" in caplog.messages[1]


def test_a_script_measures_in_place_of_the_server(tmp_path: Path) -> None:
    metrics = ServerMetrics(HOST)
    source = "print('CPUUtilization.Percent:12.5|#Level:Host|#hostname:box,1')"
    SystemMetrics(metrics, lambda: (), command=script(tmp_path, source)).collect([], Usage())
    found = scrape(metrics)
    assert found["CPUUtilization Level=Host"] == 12.5
    assert found["MemoryUsed Level=Host"] == 0


def test_torchserves_own_script_is_what_the_server_does_itself() -> None:
    metrics = ServerMetrics(HOST)
    SystemMetrics(metrics, lambda: (), command="ts/metrics/metric_collector.py --gpu 0").collect([], Usage())
    assert scrape(metrics)["MemoryUsed Level=Host"] > 0


def test_a_script_as_torchserve_documents_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
import argparse, logging, sys
from ts.metrics import system_metrics
from ts.metrics.dimension import Dimension
from ts.metrics.metric import Metric
from ts.metrics.process_memory_metric import check_process_mem_usage

def fan_speed():
    system_metrics.system_metrics.append(Metric("FanSpeed", 900, "rpm", [Dimension("Level", "Host")]))

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int)
system_metrics.fan_speed = fan_speed
system_metrics.collect_all(sys.modules["ts.metrics.system_metrics"], parser.parse_args().gpu)
check_process_mem_usage(sys.stdin)
"""
    readings = SystemCommand(script(tmp_path, source) + " --gpu 0", limit=60).run([1])
    found = {each.name: each.value for each in readings}
    assert found.keys() == {*(each.name for each in HOST_GAUGES), "FanSpeed"}
    assert found["FanSpeed"] == 900
    assert 0 < found["MemoryUtilization"] <= 100
    assert caplog.messages == []
