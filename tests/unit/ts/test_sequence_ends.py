"""The hook ``on_sequence_end``."""

import logging
from collections.abc import Callable

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.protocol.messages import EndedSequence

HANDLER = """
    ended = []

    class Handler:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            return ["ok"] * len(data)

        def on_sequence_end(self, sequence_id, reason):
            if sequence_id == "bad":
                raise KeyError(sequence_id)
            ended.append((sequence_id, reason))
"""


@pytest.mark.parametrize("continuous", [False, True])
def test_the_handler_is_told_of_every_sequence_that_ends(make_worker: Callable[..., Worker], continuous: bool) -> None:
    worker = make_worker(HANDLER, continuous=continuous)

    worker.runtime.end_sequences([EndedSequence("s-1", "idle", 0.0), EndedSequence("s-2", "ended", 0.0)])

    assert worker.module.ended == [("s-1", "idle"), ("s-2", "ended")]


def test_a_hook_that_raises_is_logged_and_harms_nothing(
    make_worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(HANDLER)

    with caplog.at_level(logging.ERROR):
        worker.runtime.end_sequences([EndedSequence("bad", "idle", 0.0), EndedSequence("s-1", "idle", 0.0)])

    assert worker.module.ended == [("s-1", "idle")]
    assert "on_sequence_end('bad', 'idle') failed" in caplog.text
    assert worker.infer(row("a"))[0][5] == b"ok"


def test_handlers_without_the_hook_are_left_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker("def handle(data, context):\n        return data and ['ok']")

    worker.runtime.end_sequences([EndedSequence("s-1", "idle", 0.0)])

    assert worker.infer(row("a"))[0][5] == b"ok"
