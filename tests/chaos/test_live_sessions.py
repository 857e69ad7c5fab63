"""Disturbed live sessions say what undisturbed ones say. `scripts/chaos sessions` runs for longer, with every store."""

from tests.chaos.live_sessions import SESSIONS, run


def test_disturbed_sessions_say_what_undisturbed_ones_say() -> None:
    report = run("file", seconds=4.0, interval=0.8, turns=2)
    print(report)
    assert not report.contradictions, f"{report}\n" + "\n".join(report.contradictions)
    assert report.answers > SESSIONS
    assert report.compared
    assert report.events
