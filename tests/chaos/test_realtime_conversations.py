"""A spoken conversation survives kills. `scripts/chaos realtime` talks for five minutes."""

import pytest
from tests.chaos.realtime_conversations import SERVER, run

for package in ("onnxruntime", "pocketsphinx", "silero_vad", "espeakng_loader"):
    pytest.importorskip(package)

PLAN = [("voice_activity", "question"), ("transcribe", "question"), ("speak", "answer"), (SERVER, "question")]


def test_a_conversation_stays_whole_while_its_workers_and_the_server_are_killed() -> None:
    report = run(PLAN, seconds=600.0)
    print(report)
    assert not report.contradictions, f"{report}\n" + "\n".join(report.contradictions)
    assert report.turns == len(PLAN) == report.kills.total()
    assert report.resumed
    assert report.told["connection lost"]
    assert report.items >= 2 * len(PLAN)
