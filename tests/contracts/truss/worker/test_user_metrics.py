"""The metrics that a model keeps itself: whose they are, and what a collector that hangs holds up."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.contracts.truss.worker.frontend import Frontend

from ts.contracts.truss import truss_runtime as runtime

Serve = Callable[..., Frontend]


class Model:
    """Is well."""

    def is_healthy(self) -> bool:
        return True

    def predict(self, inputs: Any) -> Any:
        return inputs


async def test_the_model_s_own_metrics(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = serve(Model())
    monkeypatch.delitem(sys.modules, "prometheus_client", raising=False)
    assert await frontend.runtime.expose_metrics() == b""
    import prometheus_client

    counter = prometheus_client.Counter("truss_test_orders", "How many")
    try:
        counter.inc(3)
        text = (await frontend.runtime.expose_metrics()).decode()
    finally:
        prometheus_client.REGISTRY.unregister(counter)
    assert "truss_test_orders_total 3.0" in text
    assert "python_" not in text
    assert "process_" not in text
    assert "_created" not in text


async def test_a_collector_that_does_not_come_back_holds_up_no_health_check_and_runs_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prometheus_client

    class Stuck:
        def __init__(self) -> None:
            self.collections = 0
            self.gate = threading.Event()

        def describe(self) -> list[Any]:
            return []

        def collect(self) -> list[Any]:
            self.collections += 1
            assert self.gate.wait(20)
            return [prometheus_client.metrics_core.GaugeMetricFamily("truss_test_stuck", "Was", value=self.collections)]

    stuck, frontend = Stuck(), serve(Model())
    prometheus_client.REGISTRY.register(stuck)
    try:
        monkeypatch.setattr(runtime, "_COLLECTING_LIMIT", 0.0)
        for _ in range(8):
            with pytest.raises(TimeoutError):
                await frontend.runtime.expose_metrics()
            assert await frontend.runtime.is_healthy()
        monkeypatch.setattr(runtime, "_COLLECTING_LIMIT", 20.0)
        asking = [asyncio.create_task(frontend.runtime.expose_metrics()) for _ in range(2)]
        await asyncio.sleep(0)
        stuck.gate.set()
        assert all(b"truss_test_stuck 1.0" in text for text in await asyncio.gather(*asking))
        assert b"truss_test_stuck 2.0" in await frontend.runtime.expose_metrics()
    finally:
        stuck.gate.set()
        prometheus_client.REGISTRY.unregister(stuck)
