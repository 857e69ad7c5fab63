"""What becomes a record: the sample, bodies of all forms, and the bounds of what waits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.base.metrics.records import Ended

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call, SequenceRequest
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.scheduling.job import RUNNING, WAITING
from torchserve_py.tools.journal import journal_thread as thread
from torchserve_py.tools.journal.job_journal import JobJournal
from torchserve_py.tools.journal.journal_files import JournalFiles
from torchserve_py.tools.journal.journal_keys import JournalConfig

Run = Callable[..., None]


class Written:
    """A journal and what it has written."""

    def __init__(self, folder: Path, **config: Any) -> None:
        files = JournalFiles(folder, 1, 1 << 30, None)
        self.follower = JobJournal("m", "1.0", JournalConfig(**config), files, None)
        self._folder = folder

    def run(
        self, body: Any, *answers: bytes, told: Cause | int = 200, sequence: str | None = None, **more: Any
    ) -> None:
        """Have a job journalled that begins and ends."""
        named = None if sequence is None else SequenceRequest(sequence, True, False, (("id", sequence),))
        request = Call(((b"Authorization", b"Bearer x"), (b"Accept", b"*/*")), body, sequence=named, **more)
        observed = self.follower.begin(request, "m", "1.0")
        if observed is None:
            return
        parts = [Part("j", i + 1 < len(answers), 200, "", [], each, None) for i, each in enumerate(answers)]
        for part in parts[:-1]:
            if observed.part is not None:
                observed.part(part)
        ended = Ended(1, 2, 3, told, id="j", sequence_id=sequence, worker_id="w")
        observed.end(ended, parts[-1] if parts else None)

    def records(self) -> list[dict[str, Any]]:
        assert thread.journal_thread.wait(30)
        return [json.loads(each) for file in self._folder.glob("*.jsonl") for each in file.read_text().splitlines()]


def test_bodies_of_all_forms_are_written(tmp_path: Path) -> None:
    written = Written(tmp_path, max_body=4)
    written.run(b"text", b"a", b"b")
    written.run(b"\xff\x00", b"\xff")
    written.run(bytearray("äöü".encode()), b"12345")
    written.run([("data", None, b"\xff")], told=Cause.cancelled)
    texts, binary, cut, parameters = written.records()
    assert (texts["body"], texts["answer"], texts["part_bytes"], texts["status"]) == ("text", "ab", [1, 1], 200)
    assert (binary["body"], binary["body_form"], binary["answer"]) == ("/wA=", "base64", "/w==")
    assert (cut["body"], cut["body_bytes"], cut["body_cut"]) == ("äö", 6, True)
    assert (cut["answer"], cut["answer_bytes"], cut["answer_cut"]) == ("1234", 5, True)
    assert parameters["body"] == [{"name": "data", "content_type": None, "value": "/w==", "form": "base64"}]
    assert (parameters["status"], parameters["cause"]) == (None, "cancelled")
    assert texts["headers"] == {"accept": "*/*"}


@pytest.mark.parametrize("name", ["ts_request_sequence_token", b"ts_request_sequence_token"])
def test_the_token_of_a_sequence_is_not_written_in_whatever_form_it_came(tmp_path: Path, name: str | bytes) -> None:
    written = Written(tmp_path)
    written.run([(name, None, b"secret"), ("data", None, b"1")], b"1")
    (record,) = written.records()
    assert [each["name"] for each in record["body"]] == ["data"]


@pytest.mark.parametrize("name", ["ts_request_sequence_token", "TS-Request-Sequence-Token", "Cookie"])
def test_a_header_that_is_a_secret_cannot_be_asked_for(name: str) -> None:
    with pytest.raises(ValidationError, match="not of a secret that is never written"):
        JournalConfig(headers=[name])


def test_sequences_are_sampled_as_a_whole(tmp_path: Path) -> None:
    written = Written(tmp_path, sample=0.3)
    for _ in range(3):
        for number in range(300):
            written.run(b"", b"", sequence=f"s{number}")
    ids = [each["sequence"] for each in written.records()]
    assert {ids.count(each) for each in ids} == {3}
    assert 50 < len({*ids}) < 130


def test_what_does_not_fit_is_dropped_and_counted_with_the_rest_of_its_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path, max_body=1 << 20)
    monkeypatch.setattr(thread, "MOST_BYTES", 5000)
    written.run(b"1", b"", sequence="a")
    written.run(bytes(6000), b"", sequence="a")
    monkeypatch.undo()
    written.run(b"3", b"", sequence="a")
    written.run(b"4", b"", sequence="b")
    assert [(each["sequence"], each["body"]) for each in written.records()] == [("a", "1"), ("b", "4")]
    journal = written.follower.journal
    assert (journal.records, journal.dropped) == (2, 2)


def test_of_a_call_that_gets_a_newer_body_as_it_waits_that_one_is_written(tmp_path: Path) -> None:
    written, call = Written(tmp_path), Call((), b"older")
    observed = written.follower.begin(call, "m", "1.0")
    assert observed is not None
    call.state = WAITING
    assert call.replace_body(lambda: b"newer")
    call.state, call.sends = RUNNING, 1
    assert not call.replace_body(lambda: b"too late")
    call.state = WAITING
    assert not call.replace_body(lambda: b"for a second worker"), "the first one may have applied it"
    observed.end(Ended(1, 2, 3, 200, id="j"), Part("j", False, 200, "", [], b"", None))
    assert [each["body"] for each in written.records()] == ["newer"]


def test_what_the_server_itself_asks_a_model_is_not_written(tmp_path: Path) -> None:
    written = Written(tmp_path)
    written.run(b"1", b"", via="server")
    written.run(b"2", b"", only_ask=True)
    assert written.records() == []


def test_what_the_server_tells_a_handler_of_a_step_is_written(tmp_path: Path) -> None:
    told = {"realtime_event": "append", "realtime_rate": "24000", "url_path": "v1/chat/completions"}
    request = Call((*told.items(), ("x-other", "1")), b"")
    journal = Written(tmp_path)
    observed = journal.follower.begin(request, "m", "1.0")
    assert observed is not None
    observed.end(Ended(1, 2, 3, id="j", worker_id="w"), None)
    (record,) = journal.records()
    assert record["headers"] == told
