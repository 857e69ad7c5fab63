"""Nothing acknowledged is lost, and nothing is applied twice, whatever is killed. `scripts/chaos` runs for longer."""

from __future__ import annotations

import pytest
from tests.chaos.chaos import CLIENTS, run
from tests.redis_server import need_redis_server

SECONDS = 20.0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("store", ["file", "redis"])
def test_every_total_equals_its_acknowledged_steps(store: str) -> None:
    if store == "redis":
        need_redis_server()
    report = run(store, SECONDS)
    print(report)
    assert not report.tally.faults, f"{report}\n" + "\n".join(report.tally.faults)
    assert report.tally.steps > CLIENTS
    assert report.events
