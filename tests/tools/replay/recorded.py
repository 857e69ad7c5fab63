"""Records of journals, and their replay on a server of the test's."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.journal.read_journal import JournalReader
from torchserve_py.tools.replay.replay import Replay, ReplayPlan
from torchserve_py.tools.replay.replay_report import ReplayReport
from torchserve_py.versions.traffic.answer_comparison import Comparison


def recorded(number: int = 0, **changes: Any) -> JournalRecord:
    """Return the record of a request to ``m`` over HTTP that was answered with 200, with changes."""
    known: dict[str, Any] = dict.fromkeys(JournalRecord.__required_keys__)
    usual = {
        "time": f"2026-01-01T00:{number // 60:02}:{number % 60:02}+00:00",
        **{"model": "m", "version": "1.0", "request_id": f"r{number}", "via": "http", "method": "POST"},
        **{"path": "/predictions/m", "route": "/predictions/{model_name}", "headers": {}, "sequence_headers": {}},
        **{"sequence_opens": False, "body": "", "body_form": "text", "body_bytes": 0, "body_cut": False},
        **{"more_input": False, "status": 200, "failed": False, "answer": "", "answer_form": "text"},
        **{"answer_headers": {}, "answer_bytes": 0, "answer_cut": False, "part_seconds": [], "part_bytes": []},
        **{"waiting_seconds": 0.0, "running_seconds": 0.001},
    }
    record: JournalRecord = {**known, **usual, **changes}  # type: ignore[typeddict-item]
    return record


def step(number: int, sequence: str, **changes: Any) -> JournalRecord:
    """Return the record of a step of a sequence; the first one has the number 1."""
    named = {"ts_request_sequence_id": sequence}
    return recorded(
        number, sequence=sequence, step=number, sequence_opens=number == 1, sequence_headers=named, **changes
    )


async def replayed(folder: Path, records: Sequence[JournalRecord], server: str = "", **changes: Any) -> ReplayReport:
    """Replay records on a server, on version 2.0 of the model."""
    (folder / "j.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    plan = ReplayPlan(server, changes.pop("grpc", ""), {"m": "2.0"}, None, 1, 20.0, None, Comparison())
    journal = JournalReader([folder], None)
    try:
        return await Replay(plan._replace(**changes), journal).run()
    finally:
        journal.close()
