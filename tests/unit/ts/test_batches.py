"""Batches: every row is answered once, and one row's failure stays its own."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

ECHO = """
    def handle(data, context):
        if data is None:
            return None
        return [row["body"] for row in data]
"""


def failing(statement: str) -> str:
    return f"""
    from ts.service import PredictionException

    def handle(data, context):
        if data is not None:
            {statement}
    """


def errors(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [(job_id, more, status, body, error) for job_id, more, status, _, _, body, error in rows]


def test_a_function_handler_answers_every_row(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(ECHO)

    assert worker.infer(row("a", b"1"), row("b", b'{"x": 1}', "application/json")) == [
        ["a", False, 200, "", [], b"1", None],
        ["b", False, 200, "", [], b'{\n  "x": 1\n}', None],
    ]


def test_results_leave_in_one_frame_with_the_handlers_time(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(ECHO)
    worker.admit_frame([row("a"), row("b")])
    worker.runtime.step()

    [[kind, rows, seconds]] = worker.peer.arrived()

    assert (kind, len(rows)) == ("results", 2)
    assert 0 < seconds < 20


def test_status_reason_and_headers_are_each_rows_own(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        class Handler:
            def initialize(self, context):
                context.model_version = "kept"

            def handle(self, data, context):
                context.set_response_status(201, "made", 1)
                context.set_response_content_type(1, "text/plain")
                return [context.model_version, context.get_request_id(1)]
        """
    )

    assert worker.infer(row("a"), row("b")) == [
        ["a", False, 200, "", [], b"kept", None],
        ["b", False, 201, "made", [["content-type", "text/plain"]], b"b", None],
    ]


@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("raise KeyError('x')", 503, "Prediction failed"),
        ("raise BaseException('a panic of Rust code')", 503, "Prediction failed"),
        ("raise MemoryError()", 507, "Out of resources"),
        ("raise RuntimeError('CUDA error: out of memory')", 507, "Out of resources"),
        ("raise PredictionException('not today', 418)", 418, "not today"),
        ("raise PredictionException('too large', 413)", 507, "too large"),
        ("raise PredictionException('plain')", 500, "plain"),
        ("return 'text'", 503, "Invalid model predict output"),
        ("return ['one']", 503, "number of batch response mismatched"),
    ],
)
def test_what_the_handler_does_wrong_fails_the_whole_batch(
    make_worker: Callable[..., Worker], statement: str, status: int, message: str
) -> None:
    worker = make_worker(failing(statement))

    assert errors(worker.infer(row("a"), row("b"))) == [
        ("a", False, status, b"", message),
        ("b", False, status, b"", message),
    ]


def test_a_batch_that_failed_leaves_the_next_one_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            return data and [1 / int(row["body"]) for row in data]
        """
    )

    assert errors(worker.infer(row("a", b"0"))) == [("a", False, 503, b"", "Prediction failed")]
    assert errors(worker.infer(row("b", b"1"))) == [("b", False, 200, b"1.0", None)]


@pytest.mark.parametrize(
    ("value", "status", "message"),
    [
        ("object()", 503, "Unsupported model output data type."),
        ("b'x' * 101", 500, "The response has 101 bytes; max_response_size is 100."),
    ],
)
def test_one_row_that_cannot_be_sent_fails_alone(
    make_worker: Callable[..., Worker], value: str, status: int, message: str
) -> None:
    worker = make_worker(
        f"""
        def handle(data, context):
            return data and ["first", {value}, "last"]
        """,
        max_response_size=100,
    )

    assert errors(worker.infer(row("a"), row("b"), row("c"))) == [
        ("a", False, 200, b"first", None),
        ("b", False, status, b"", message),
        ("c", False, 200, b"last", None),
    ]


def test_one_row_with_a_status_http_does_not_have_fails_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is not None:
                context.set_response_status(1000, idx=0)
                return ["a", "b"]
        """
    )

    first, second = worker.infer(row("a"), row("b"))

    assert (first[2], first[5]) == (500, b"")
    assert "1000" in first[6]
    assert second[2:] == [200, "", [], b"b", None]


def test_one_row_whose_header_cannot_be_told_fails_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        class Untellable:
            def __str__(self):
                raise AttributeError("text")

        def handle(data, context):
            if data is not None:
                context.set_response_header(0, "X-Value", Untellable())
                return ["a", "b"]
        """
    )

    assert errors(worker.infer(row("a"), row("b"))) == [
        ("a", False, 503, b"", "Prediction failed"),
        ("b", False, 200, b"b", None),
    ]


@pytest.mark.parametrize(
    ("base", "status", "message"),
    [("Exception", 503, "Prediction failed"), ("PredictionException", 500, "HandlerError")],
)
def test_an_exception_that_cannot_be_told_is_answered_all_the_same(
    make_worker: Callable[..., Worker], base: str, status: int, message: str
) -> None:
    worker = make_worker(
        f"""
        from ts.service import PredictionException

        class HandlerError({base}):
            def __init__(self):
                pass

            def __str__(self):
                return self.absent

        def handle(data, context):
            if data is not None:
                raise HandlerError
        """
    )

    assert errors(worker.infer(row("a"))) == [("a", False, status, b"", message)]


def test_a_row_that_cannot_be_read_fails_alone_and_is_logged(
    make_worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(ECHO)

    answers = worker.infer(row("a", [["name without value"]]), row("b", b"1"))

    assert errors(answers) == [
        ("a", False, 500, b"", "The request cannot be read; the server's log says why."),
        ("b", False, 200, b"1", None),
    ]
    assert "Request a cannot be read" in caplog.text


def test_an_error_text_that_is_no_unicode_is_told_as_far_as_it_goes(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(failing("raise PredictionException('bad \\udcff name', 400)"))

    assert errors(worker.infer(row("a"))) == [("a", False, 400, b"", "bad ? name")]


def test_a_malformed_form_never_reaches_the_handler_and_fails_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(ECHO)

    answers = {answer[0]: answer for answer in worker.infer(row("a", b"x", "multipart/form-data"), row("b", b"1"))}

    assert answers["a"][2] == 400
    assert "boundary" in answers["a"][6]
    assert answers["b"][5] == b"1"


def test_a_row_in_a_protocol_whose_plugin_is_missing_is_refused_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker("def handle(data, context):\n    return data and ['ok'] * len(data)", protocols={"known": "m"})

    answers = {answer[0]: answer for answer in worker.infer(row("a")._replace(protocol="absent"), row("b"))}

    assert answers["a"][2] == 501
    assert answers["a"][6] == "The protocol 'absent' cannot be read for a handler; these can be: known."
    assert answers["b"][5] == b"ok"


def test_a_job_cancelled_before_it_runs_never_reaches_the_handler(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        seen = []

        def handle(data, context):
            if data is not None:
                seen.extend(context.request_ids.values())
                return ["x"] * len(data)
        """
    )
    worker.peer.send("infer", [row("a"), row("b")])
    worker.peer.send("cancel", ["a"])

    answers = worker.step()

    assert errors(answers) == [("a", False, 499, b"", "cancelled"), ("b", False, 200, b"x", None)]
    assert worker.module.seen == ["b"]


def test_a_batch_of_cancelled_jobs_is_answered_without_the_handler(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(failing("raise AssertionError('called')"))
    worker.peer.send("infer", [row("a"), row("b")])
    worker.peer.send("cancel", ["b", "a"])

    assert errors(worker.step()) == [("a", False, 499, b"", "cancelled"), ("b", False, 499, b"", "cancelled")]


def test_a_job_cancelled_while_the_handler_runs_is_answered_499(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is not None:
                during(context)
                return ["x"] * len(data)
        """
    )

    def during(context: Any) -> None:
        worker.peer.send("cancel", ["a"])
        worker.connection.look()

    worker.module.during = during

    assert errors(worker.infer(row("a"), row("b"))) == [
        ("a", False, 499, b"", "cancelled"),
        ("b", False, 200, b"x", None),
    ]


def test_responses_that_are_large_together_leave_in_frames_of_their_own(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(ECHO, max_response_size=100)
    worker.admit_frame([row(job_id, b"x" * 60) for job_id in "abc"])
    worker.runtime.step()

    frames = worker.peer.arrived()

    assert [[answer[0] for answer in rows] for _, rows, _ in frames] == [["a"], ["b"], ["c"]]
    assert [seconds > 0 for _, _, seconds in frames] == [False, False, True]


def test_large_bodies_go_both_ways_unchanged(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(ECHO)
    bodies = [bytes([value]) * 40_000 for value in (1, 2)]

    answers = worker.infer(row("a", bodies[0]), row("b", bodies[1]))

    assert [answer[5] for answer in answers] == bodies
