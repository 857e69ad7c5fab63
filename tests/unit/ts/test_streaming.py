"""Streaming in parts with `send_intermediate_predict_response`, and its cancellation."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.context import Context
from ts.handler_utils.utils import import_class, send_intermediate_predict_response

STREAMER = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    sent = []
    before_part = lambda number: None

    def handle(data, context):
        if data is None:
            return None
        context.set_response_content_type(0, "text/event-stream")
        for number in range(3):
            before_part(number)
            parts = [f"{row['body'].decode()}{number}" for row in data]
            send_intermediate_predict_response(parts, context.request_ids, "success", 200, context)
            sent.append(number)
        return ["end"] * len(data)
"""
STREAMED = [["ts_stream_next", "true"]]


def parts(rows: list[list[Any]], job_id: str) -> list[tuple[bool, int, bytes, str | None]]:
    return [(more, status, body, error) for id_, more, status, _, _, body, error in rows if id_ == job_id]


def cancel_before_part_1(worker: Worker, *job_ids: str) -> None:
    def before_part(number: int) -> None:
        if number == 1:
            worker.peer.send("cancel", list(job_ids))

    worker.module.before_part = before_part


def test_every_row_gets_its_parts_in_order_and_the_return_value_last(make_worker: Callable[..., Worker]) -> None:
    rows = make_worker(STREAMER).infer(row("a", b"x"), row("b", b"y"))

    assert parts(rows, "a") == [
        (True, 200, b"x0", None),
        (True, 200, b"x1", None),
        (True, 200, b"x2", None),
        (False, 200, b"end", None),
    ]
    assert [body for _, _, body, _ in parts(rows, "b")] == [b"y0", b"y1", b"y2", b"end"]


def test_the_first_part_carries_the_head_and_says_that_it_streams(make_worker: Callable[..., Worker]) -> None:
    rows = make_worker(STREAMER).infer(row("a", b"x"), row("b", b"y"))

    first_a, first_b = rows[:2]
    assert first_a[4] == [["content-type", "text/event-stream"], ["ts_stream_next", "true"]]
    assert first_b[4] == STREAMED
    last_a = rows[-2]
    assert ["ts_stream_next", "false"] in last_a[4]


def test_the_old_import_path_streams_too(make_worker: Callable[..., Worker]) -> None:
    source = STREAMER.replace("ts.handler_utils.utils", "ts.protocol.otf_message_handler")

    rows = make_worker(source).infer(row("a", b"x"))

    assert [body for _, _, body, _ in parts(rows, "a")] == [b"x0", b"x1", b"x2", b"end"]


def test_a_cancelled_row_gets_no_more_parts_and_its_mates_go_on(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(STREAMER)
    cancel_before_part_1(worker, "a")

    rows = worker.infer(row("a", b"x"), row("b", b"y"))

    assert parts(rows, "a") == [(True, 200, b"x0", None), (False, 499, b"", "cancelled")]
    assert [body for _, _, body, _ in parts(rows, "b")] == [b"y0", b"y1", b"y2", b"end"]


def test_the_handler_stops_when_every_row_is_cancelled(
    make_worker: Callable[..., Worker], caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(STREAMER)
    cancel_before_part_1(worker, "b", "a")

    with caplog.at_level(logging.WARNING):
        rows = worker.infer(row("a", b"x"), row("b", b"y"))

    assert worker.module.sent == [0]
    for job_id in ("a", "b"):
        assert [more for more, *_ in parts(rows, job_id)] == [True, False]
        assert parts(rows, job_id)[-1] == (False, 499, b"", "cancelled")
    assert caplog.records == []


def test_a_handler_may_catch_the_cancellation_and_return(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response
        from ts.jobs.errors import JobsCancelled

        def handle(data, context):
            if data is not None:
                cancel()
                try:
                    send_intermediate_predict_response(["part"], context.request_ids, "success", 200, context)
                except JobsCancelled:
                    return ["cleaned up"]
        """
    )
    worker.module.cancel = lambda: worker.peer.send("cancel", ["a"])

    assert parts(worker.infer(row("a")), "a") == [(False, 499, b"", "cancelled")]


def test_an_exception_between_parts_ends_every_stream_with_an_error(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(STREAMER)
    worker.module.before_part = lambda number: 1 // (1 - number)

    rows = worker.infer(row("a", b"x"), row("b", b"y"))

    for job_id, body in (("a", b"x0"), ("b", b"y0")):
        assert parts(rows, job_id) == [(True, 200, body, None), (False, 503, b"", "Prediction failed")]


def test_a_part_that_cannot_be_sent_ends_its_row_alone(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is not None:
                send_intermediate_predict_response([object(), "part"], context.request_ids, "success", 200, context)
                return ["never", "end"]
        """
    )

    rows = worker.infer(row("a"), row("b"))

    assert parts(rows, "a") == [(False, 503, b"", "Unsupported model output data type.")]
    assert parts(rows, "b") == [(True, 200, b"part", None), (False, 200, b"end", None)]


def test_parts_can_go_to_some_rows_only_and_a_code_ends_them(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is not None:
                send_intermediate_predict_response(["part", None], {0: context.request_ids[0]}, "", 200, context)
                send_intermediate_predict_response(None, {1: context.request_ids[1]}, "no quota", 429, context)
                return ["end", "never"]
        """
    )

    rows = worker.infer(row("a"), row("b"))

    assert parts(rows, "a") == [(True, 200, b"part", None), (False, 200, b"end", None)]
    assert parts(rows, "b") == [(False, 429, b"", "no quota")]


def test_a_part_outside_of_a_batch_is_refused() -> None:
    context = Context("model", "/models/model", None, 1, None, "0.1.0")

    with pytest.raises(RuntimeError, match="while the handler runs a batch"):
        send_intermediate_predict_response(["x"], {0: "a"}, "success", 200, context)


def test_a_class_is_imported_by_its_dotted_name() -> None:
    assert import_class("context.Context", "ts") is Context
    with pytest.raises(ImportError, match="has no class 'Absent'"):
        import_class("ts.context.Absent")
    with pytest.raises(ImportError):
        import_class("Context")


def test_a_part_sent_after_the_batch_is_refused(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(STREAMER)
    worker.infer(row("a", b"x"))
    context = worker.service.context

    with pytest.raises(RuntimeError, match="only be sent while the handler runs a batch"):
        send_intermediate_predict_response(["late"], context.request_ids or {}, "success", 200, context)

    assert worker.peer.result_rows() == []
    assert len(worker.infer(row("b", b"x"))) == 4
