"""No sequence in memory is lost, and no step counts twice, while workers and their server are restarted."""

from tests.chaos.moving import run


def test_sequences_in_memory_outlive_their_workers_and_their_server() -> None:
    report = run(sessions=60, large=3, rounds=1)
    assert not report.wrong, f"{report}\n" + "\n".join(report.wrong)
    assert report.steps > 60
