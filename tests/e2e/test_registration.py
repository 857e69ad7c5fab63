"""Models at the start of a server and over its life, as an operator sees them."""

from __future__ import annotations

from tests.e2e.running_server import HANDLERS, RunningServer, eventually


def test_describe_shows_the_memory_of_each_worker() -> None:
    properties = {"disable_system_metrics": "false", "metric_time_interval": 1}
    with RunningServer({"echo": HANDLERS / "echo"}, properties) as running:
        running.wait_ready()
        memory = eventually(lambda: running.describe("echo")[0]["workers"][0]["memoryUsage"], "memory was measured")
        assert memory > 1024 * 1024
