"""No client behind a proxy is told what is not so, while servers are killed, frozen, restarted and replaced."""

import pytest
from tests.chaos.fleet import run
from tests.programs import need_program
from tests.proxies import Envoy, HAProxy, Proxy

SECONDS = 15
SCALE = 0.15


@pytest.mark.parametrize("proxy", [HAProxy, Envoy])
def test_no_client_behind_a_proxy_is_told_what_is_not_so(proxy: type[Proxy]) -> None:
    need_program("redis-server")
    report, sessions = run(SECONDS, proxy, SCALE)
    print(report, sessions, sep="\n")
    contradictions = [*report.contradictions, *sessions.contradictions]
    assert not contradictions, f"{report}\n{sessions}\n" + "\n".join(contradictions)
    assert report.tally.acknowledged and sessions.answers
