"""handlers/stateful: totals per sequence, the end of a sequence, and streams that can be cancelled."""

import inspect
from collections import defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

HANDLER = "stateful/stateful_handler.py"
SEQUENCE_ID = "ts_request_sequence_id"
END = "ts_request_sequence_end"


class Server:
    """Plays the server's part for one handler: numbers requests, and in continuous mode asks again for open rows."""

    def __init__(self, module: ModuleType, context_type: type, config: dict[str, Any]):
        self.context = context_type(config)
        self.handler = module.StatefulHandler()
        self.handler.initialize(self.context)
        self._count = 0
        self.open_rows: dict[str, dict[str, str]] = {}

    def batch(self, *requests: tuple[str | None, Any], **headers: str) -> list[str]:
        """Send (sequence id, body) rows in one batch, behind the rows that still stream. Returns all rows' results."""
        rows: list[tuple[str, dict[str, str]]] = list(self.open_rows.items())
        data: list[dict[str, Any]] = [{} for _ in rows]
        for sequence_id, body in requests:
            self._count += 1
            row_headers = dict(headers) if sequence_id is None else {SEQUENCE_ID: sequence_id, **headers}
            rows.append((f"request-{self._count}", row_headers))
            data.append({"body": body})
        self.context.next_batch(rows)
        results: list[str] = self.handler.handle(data, self.context)
        assert len(results) == len(rows)
        criteria = self.context.stopping_criteria
        if criteria is not None:
            self.open_rows = {
                row[0]: row[1]
                for row, criterion, result in zip(rows, criteria, results, strict=True)
                if criterion(result) is False
            }
        return results


@pytest.fixture
def plain(handler_module: ModuleType, fake_context: type) -> Server:
    return Server(handler_module, fake_context, {"batchSize": 8, "maxNumSequence": 100, "sequenceBatching": True})


@pytest.fixture
def continuous(handler_module: ModuleType, fake_context: type) -> Server:
    config = {"batchSize": 8, "maxNumSequence": 100, "sequenceBatching": True, "continuousBatching": True}
    return Server(handler_module, fake_context, config)


def test_numbers_add_up_per_sequence(plain: Server) -> None:
    assert plain.batch(("a", b"5"), ("b", bytearray(b"40\n"))) == ["5", "40"]
    assert plain.batch(("b", "2"), ("a", 7)) == ["42", "12"]
    assert plain.batch(("a", b"-20")) == ["-8"]


def test_zero_ends_the_sequence_and_the_next_number_begins_anew(plain: Server) -> None:
    plain.batch(("a", b"5"))
    assert plain.batch(("a", b"0")) == ["5"]
    assert plain.context.response_headers[0][END] == "a"
    assert plain.batch(("a", b"3")) == ["3"]
    assert END not in plain.context.response_headers[0]


def test_the_start_header_begins_anew(plain: Server) -> None:
    plain.batch(("a", b"5"))
    assert plain.batch(("a", b"1"), ts_request_sequence_start="true") == ["1"]
    assert plain.batch(("a", b"1"), ts_request_sequence_start="false") == ["2"]


def test_the_sequence_id_is_returned(plain: Server) -> None:
    plain.batch(("a", b"5"))
    assert plain.context.response_headers[0][SEQUENCE_ID] == "a"


@pytest.mark.parametrize("body", [b"", b"five", b"1.5", b"\xff\xfe", bytearray(b"1 2"), None, True, [1], {"x": 1}, 2.5])
def test_a_bad_number_fails_its_own_row_alone(plain: Server, body: Any) -> None:
    plain.batch(("a", b"1"), ("b", b"1"))
    _, message, _ = plain.batch(("a", b"1"), ("b", body), ("c", b"1"))
    assert plain.context.status == {1: (400, "Bad Request")}
    assert "whole number" in message
    assert plain.batch(("a", b"1"), ("b", b"1")) == ["3", "2"]


def test_a_form_is_told_what_to_send(plain: Server) -> None:
    (message,) = plain.batch(("a", None))
    assert "Content-Type: text/plain" in message


def test_a_request_without_a_sequence_id_is_refused(plain: Server) -> None:
    (message,) = plain.batch((None, b"1"))
    assert plain.context.status[0][0] == 400
    assert SEQUENCE_ID in message


def test_a_closed_sequence_is_forgotten(plain: Server) -> None:
    plain.batch(("a", b"5"), ("b", b"6"))
    plain.handler.on_sequence_end("a", "idle")
    plain.handler.on_sequence_end("never seen", "idle")
    assert plain.batch(("a", b"1"), ("b", b"1")) == ["1", "7"]


def test_plain_mode_answers_odd_numbers_and_minus_one_once(plain: Server) -> None:
    assert plain.batch(("a", b"3")) == ["3"]
    assert plain.batch(("a", b"-1")) == ["2"]
    assert plain.context.stopping_criteria is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(min_value=1, max_value=99)), max_size=60))
def test_interleaved_sequences_never_mix(requests: list[tuple[str, int]]) -> None:
    server = _property_server()
    totals: dict[str, int] = defaultdict(int)
    for sequence_id, number in requests:
        totals[sequence_id] += number
        assert server.batch((sequence_id, str(number))) == [str(totals[sequence_id])]


def test_an_even_number_is_answered_once(continuous: Server) -> None:
    assert continuous.batch(("a", b"4")) == ["4"]
    assert [criterion(None) for criterion in continuous.context.stopping_criteria] == [None]


def test_an_odd_number_streams_ten_further_responses(continuous: Server) -> None:
    parts = continuous.batch(("a", b"3"))
    while continuous.open_rows:
        parts += continuous.batch()
    assert parts == [f"{total}\n" for total in range(3, 14)]
    assert continuous.batch(("a", b"2")) == ["5"]


def test_minus_one_cancels_the_streams_of_its_own_sequence(continuous: Server) -> None:
    continuous.batch(("a", b"3"), ("b", b"5"))
    assert continuous.batch() == ["4\n", "6\n"]
    assert continuous.batch(("a", b"-1")) == ["5\n", "7\n", "3"]
    assert list(continuous.open_rows) == ["request-2"]
    assert continuous.batch() == ["8\n"]
    assert continuous.batch(("a", b"2"))[-1] == "5"


def test_a_stream_cancelled_by_an_earlier_row_of_its_step_still_ends(continuous: Server) -> None:
    continuous.batch(("a", b"3"))
    context, handler = continuous.context, continuous.handler
    context.next_batch([("cancel", {SEQUENCE_ID: "a"}), ("request-1", {SEQUENCE_ID: "a"})])
    assert handler.handle([{"body": b"-1"}, {}], context) == ["3", ""]
    assert [criterion(None) for criterion in context.stopping_criteria] == [None, True]


def test_zero_ends_the_sequence_and_its_streams(continuous: Server) -> None:
    continuous.batch(("a", b"3"))
    assert continuous.batch(("a", b"0")) == ["4\n", "3"]
    assert continuous.open_rows == {}
    assert continuous.context.response_headers[1][END] == "a"


def test_a_stream_whose_client_went_away_leaves_nothing_behind(continuous: Server) -> None:
    continuous.batch(("a", b"3"))
    continuous.open_rows.clear()
    continuous.batch(("b", b"2"))
    assert continuous.handler.streams == {}
    assert continuous.batch(("a", b"2")) == ["5"]


def test_a_bad_number_fails_alone_beside_a_stream(continuous: Server) -> None:
    continuous.batch(("a", b"3"))
    results = continuous.batch(("b", b"x"))
    assert results[0] == "4\n"
    assert continuous.context.status == {1: (400, "Bad Request")}
    assert list(continuous.open_rows) == ["request-1"]


def test_torchserve_finds_one_class_and_no_torch(handler_module: ModuleType) -> None:
    classes = [
        c for _, c in inspect.getmembers(handler_module, inspect.isclass) if c.__module__ == handler_module.__name__
    ]
    assert [c.__name__ for c in classes] == ["StatefulHandler"]
    assert "torch" not in vars(handler_module)


@pytest.mark.parametrize("name", ["model-config.yaml", "model-config-continuous.yaml"])
def test_its_configurations_are_sequence_models(handlers_dir: Path, name: str) -> None:
    config = yaml.safe_load((handlers_dir / "stateful" / name).read_text())
    assert config["sequenceBatching"] is True
    assert config["sequenceMaxIdleMSec"] > 0
    assert config.get("continuousBatching", False) is ("continuous" in name)


def _property_server() -> Server:
    from tests.unit.handlers.conftest import HANDLERS, FakeContext, load_module

    return Server(load_module(HANDLERS / HANDLER), FakeContext, {"maxNumSequence": 100, "sequenceBatching": True})
