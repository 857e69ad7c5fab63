"""No sequence in memory is lost, and no step counts twice, while workers and their servers are restarted."""

import pytest
from tests.chaos.moving import run


@pytest.mark.parametrize(
    ("servers", "proxied", "in_redis"), [(1, False, False), (2, False, False), (2, True, False), (2, True, True)]
)
def test_sequences_in_memory_outlive_their_workers_and_their_servers(
    servers: int, proxied: bool, in_redis: bool
) -> None:
    report = run(sessions=60, large=3, rounds=1, servers=servers, proxied=proxied, in_redis=in_redis)
    assert not report.wrong, f"{report}\n" + "\n".join(report.wrong)
    assert report.steps > 60
