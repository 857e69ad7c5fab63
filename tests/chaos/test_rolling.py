"""Nobody loses a sequence, or is told what is not so, while versions and servers are replaced and killed."""

from tests.chaos.rolling import run
from tests.programs import need_program
from tests.proxies import HAProxy

SECONDS = 25
SCALE = 0.06


def test_nobody_loses_a_sequence_while_versions_and_servers_are_replaced() -> None:
    need_program("redis-server")
    report, sessions = run(SECONDS, HAProxy, SCALE)
    print(report, sessions, sep="\n")
    contradictions = [*report.contradictions, *sessions.contradictions]
    assert not contradictions, f"{report}\n{sessions}\n" + "\n".join(contradictions)
    assert report.tally.acknowledged and sessions.answers
    assert report.events["sequence migrated"]
