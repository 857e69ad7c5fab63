"""Continuous batching: the step loop, joining and leaving between steps, stopping criteria."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

# Counts every row down from the number in its body; state by request id, as TorchServe's examples keep it.
COUNTDOWN = """
    steps = []

    class Handler:
        def initialize(self, context):
            self.remaining = {}
            context.header = "kept"

        def handle(self, data, context):
            steps.append([(context.get_request_id(i), dict(row)) for i, row in enumerate(data)])
            for index, row in enumerate(data):
                job_id = context.get_request_id(index)
                if job_id not in self.remaining:
                    self.remaining[job_id] = int(row["body"])
                self.remaining[job_id] -= 1
            context.stopping_criteria = [self.criterion(job_id) for job_id in context.request_ids.values()]
            return [self.remaining[job_id] for job_id in context.request_ids.values()]

        def criterion(self, job_id):
            return lambda result: self.remaining[job_id] == 0
"""


def brief(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [(job_id, more, body.decode() if error is None else error) for job_id, more, *_, body, error in rows]


@pytest.fixture
def worker(make_worker: Callable[..., Worker]) -> Worker:
    return make_worker(COUNTDOWN, continuous=True)


def test_live_rows_go_on_by_themselves_until_their_criterion_stops_them(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"3")])

    assert brief(worker.step()) == [("a", True, "2")]
    assert brief(worker.step()) == [("a", True, "1")]
    assert brief(worker.step()) == [("a", False, "0")]
    assert not worker.runtime.is_busy
    assert worker.module.steps == [[("a", {"body": bytearray(b"3")})], [("a", {})], [("a", {})]]


def test_new_rows_join_between_steps_and_known_rows_come_empty(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"3")])
    worker.step()
    worker.peer.send("infer", [row("b", b"2"), row("c", b"1")])

    assert brief(worker.step()) == [("a", True, "1"), ("b", True, "1"), ("c", False, "0")]
    assert worker.module.steps[-1] == [
        ("a", {}),
        ("b", {"body": bytearray(b"2")}),
        ("c", {"body": bytearray(b"1")}),
    ]
    assert brief(worker.step()) == [("a", False, "0"), ("b", False, "0")]


def test_known_rows_keep_their_request_headers(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        class Handler:
            def initialize(self, context):
                pass

            def handle(self, data, context):
                context.stopping_criteria = [lambda result: False]
                return [context.get_sequence_id(0)]
        """,
        continuous=True,
    )
    worker.peer.send("infer", [row("a", b"", headers=[("ts_request_sequence_id", "s-1")])])

    assert [brief(worker.step()) for _ in range(2)] == [[("a", True, "s-1")]] * 2


def test_a_cancelled_row_leaves_within_one_step(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"5"), row("b", b"5")])
    worker.step()
    worker.peer.send("cancel", ["a"])

    assert brief(worker.step()) == [("a", False, "cancelled"), ("b", True, "3")]
    assert worker.module.steps[-1] == [("b", {})]


def test_cancellations_of_rows_that_are_done_do_not_pile_up(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"5"), row("b", b"1")])
    worker.step()
    worker.peer.send("cancel", ["b"])

    assert brief(worker.step()) == [("a", True, "3")]
    worker.step()
    assert worker.connection.cancelled == set()


def test_a_row_that_is_cancelled_while_others_leave_is_answered(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"5"), row("b", b"5")])
    worker.step()
    worker.peer.send("cancel", ["a"])
    send_results = worker.connection.send_results

    def send(*results: Any) -> None:
        worker.connection.cancelled.update({"b", "c"})  # as by the thread that receives
        send_results(*results)

    worker.connection.send_results = send  # type: ignore[method-assign]
    assert brief(worker.step()) == [("a", False, "cancelled"), ("b", False, "cancelled")]
    worker.connection.send_results = send_results  # type: ignore[method-assign]
    worker.peer.send("infer", [row("c", b"5")])
    assert brief(worker.step()) == [("c", False, "cancelled")]
    assert not worker.runtime.is_busy


def test_when_all_rows_are_cancelled_the_handler_is_not_called(worker: Worker) -> None:
    worker.peer.send("infer", [row("a", b"5")])
    worker.step()
    worker.peer.send("cancel", ["a"])

    assert brief(worker.step()) == [("a", False, "cancelled")]
    assert len(worker.module.steps) == 1
    assert not worker.runtime.is_busy


def test_an_exception_fails_all_live_rows_and_later_rows_run(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        fail = False

        class Handler:
            def initialize(self, context):
                pass

            def handle(self, data, context):
                if fail:
                    raise KeyError("state")
                context.stopping_criteria = [lambda result: False] * len(data)
                return ["part"] * len(data)
        """,
        continuous=True,
    )
    worker.peer.send("infer", [row("a"), row("b")])
    worker.step()
    worker.module.fail = True

    failed = worker.step()

    assert [(job_id, more, status, error) for job_id, more, status, *_, error in failed] == [
        ("a", False, 503, "Prediction failed"),
        ("b", False, 503, "Prediction failed"),
    ]
    worker.module.fail = False
    worker.peer.send("infer", [row("c")])
    assert brief(worker.step()) == [("c", True, "part")]


def with_criteria(criteria: str) -> str:
    return f"""
    class Handler:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            context.stopping_criteria = {criteria}
            return ["part"] * len(data)
    """


@pytest.mark.parametrize(
    "criteria",
    [
        "[lambda result: False, lambda result: True]",
        "{0: lambda result: False, 1: lambda result: True}",
        "{'a': lambda result: False, 'b': lambda result: True}",
        "[lambda result: False]",
        "{0: lambda result: False}",
    ],
)
def test_criteria_are_a_list_or_a_dict_and_a_row_without_one_is_done(
    make_worker: Callable[..., Worker], criteria: str
) -> None:
    worker = make_worker(with_criteria(criteria), continuous=True)
    worker.peer.send("infer", [row("a"), row("b")])

    assert brief(worker.step()) == [("a", True, "part"), ("b", False, "part")]


@pytest.mark.parametrize(
    ("criterion", "more", "headers"),
    [
        ("True", False, [["ts_stream_next", "false"]]),
        ("False", True, [["ts_stream_next", "true"]]),
        ("None", False, []),
    ],
)
def test_the_criterion_decides_the_stream_header(
    make_worker: Callable[..., Worker], criterion: str, more: bool, headers: list[list[str]]
) -> None:
    worker = make_worker(with_criteria(f"[lambda result: {criterion}]"), continuous=True)
    worker.peer.send("infer", [row("a")])

    [answer] = worker.step()

    assert (answer[1], answer[4]) == (more, headers)


def test_a_row_without_a_result_yet_sends_nothing(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        class Handler:
            def initialize(self, context):
                self.steps = 0

            def handle(self, data, context):
                self.steps += 1
                context.stopping_criteria = [lambda result: False if result is None else None] * len(data)
                if self.steps == 3 and len(data) > 1:
                    context.fail(1, "too long")
                return ["whole" if self.steps == 4 else None] * len(data)
        """,
        continuous=True,
    )
    worker.peer.send("infer", [row("a", b""), row("b", b"")])
    assert [brief(worker.step()) for _ in range(2)] == [[], []]
    assert brief(worker.step()) == [("b", False, "too long")]
    assert brief(worker.step()) == [("a", False, "whole")]
    assert not worker.runtime.is_busy


def test_a_criterion_that_raises_fails_its_row_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(with_criteria("[lambda result: 1 // 0, lambda result: True]"), continuous=True)
    worker.peer.send("infer", [row("a"), row("b")])

    assert brief(worker.step()) == [("a", False, "Prediction failed"), ("b", False, "part")]


def test_a_header_of_a_later_step_reaches_the_frontend(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        class Handler:
            def initialize(self, context):
                self.steps = 0

            def handle(self, data, context):
                self.steps += 1
                context.set_response_header(0, f"step-{self.steps}", "x")
                if self.steps == 2:
                    context.set_response_header(0, context.header_key_sequence_end, context.get_sequence_id(0))
                context.stopping_criteria = [lambda result: self.steps == 2]
                return ["part"]
        """,
        continuous=True,
    )
    worker.peer.send("infer", [row("a", headers=[("ts_request_sequence_id", "s-1")])])
    worker.step()

    [answer] = worker.step()

    assert answer[4] == [["step-2", "x"], ["ts_request_sequence_end", "s-1"], ["ts_stream_next", "false"]]


def test_a_describe_request_runs_alone_between_steps(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        sizes = []

        class Handler:
            def initialize(self, context):
                pass

            def handle(self, data, context):
                sizes.append(len(data))
                if context.get_request_header(0, "describe") == "True":
                    return ["description"]
                context.stopping_criteria = [lambda result: False] * len(data)
                return ["part"] * len(data)
        """,
        continuous=True,
    )
    worker.peer.send("infer", [row("a")])
    worker.step()
    worker.peer.send("infer", [row("d", headers=[("describe", "True")])])

    assert brief(worker.step()) == [("d", False, "description")]
    assert brief(worker.step()) == [("a", True, "part")]
    assert worker.module.sizes == [1, 1, 1]


def test_a_handler_is_told_which_rows_have_left(make_worker: Callable[..., Worker]) -> None:
    hook = """
        def on_cancel(self, request_ids):
            for job_id in request_ids:
                del self.remaining[job_id]
    """
    worker = make_worker(COUNTDOWN.rstrip() + "\n" + hook, continuous=True)
    worker.peer.send("infer", [row("a", b"9"), row("b", b"9")])
    worker.step()
    worker.peer.send("cancel", ["a"])
    worker.step()
    assert worker.service.entry_point.__self__.remaining == {"b": 7}  # type: ignore[attr-defined]
