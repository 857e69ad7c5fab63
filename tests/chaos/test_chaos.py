"""What clients are told is true, whatever is killed. `scripts/chaos` runs for longer."""

import pytest
from tests.chaos.chaos import CLIENTS, run
from tests.programs import need_program

SECONDS = 16.0


@pytest.mark.parametrize("store", ["file", "redis"])
def test_no_client_is_told_what_is_not_so(store: str) -> None:
    if store == "redis":
        need_program("redis-server")
    report = run(store, SECONDS)
    print(report)
    assert not report.contradictions, f"{report}\n" + "\n".join(report.contradictions)
    assert report.tally.acknowledged > CLIENTS
    assert report.events
