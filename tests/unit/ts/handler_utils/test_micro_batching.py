"""A batch cut into micro batches: their order, what runs at the same time, and what happens when one fails."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.context import Context, RequestProcessor
from ts.handler_utils.micro_batching import MicroBatching
from ts.metrics.metrics_cache import MetricsCache

DEADLINE_SECONDS = 20.0


class Handler:
    """Notes which rows each step is called with."""

    def __init__(self) -> None:
        self.context: Any = None
        self.calls: list[tuple[str, list[int]]] = []

    def preprocess(self, data: list[int]) -> list[int]:
        self.calls.append(("preprocess", list(data)))
        return data

    def inference(self, data: list[int]) -> list[int]:
        self.calls.append(("inference", list(data)))
        return [value * 10 for value in data]

    def postprocess(self, data: list[int]) -> list[str]:
        self.calls.append(("postprocess", list(data)))
        return [str(value) for value in data]

    def describe_handle(self) -> Any:
        return "described"

    def explain_handle(self, prepared: Any, data: Any) -> Any:
        return [("explained", prepared, data)]

    def _is_describe(self) -> bool:
        return bool(self.context.get_request_header(0, "describe") == "True")

    def _is_explain(self) -> bool:
        return bool(self.context.get_request_header(0, "explain") == "True")


@pytest.fixture
def micro_batching() -> Iterator[Callable[..., MicroBatching]]:
    made: list[MicroBatching] = []

    def make(handler: Any, *args: Any) -> MicroBatching:
        made.append(MicroBatching(handler, *args))
        return made[-1]

    yield make
    for each in made:
        each.shutdown()


@pytest.mark.parametrize(("size", "batches"), [(1, 5), (2, 3), (5, 1), (9, 1)])
def test_results_come_in_the_order_of_the_rows(
    micro_batching: Callable[..., MicroBatching], size: int, batches: int
) -> None:
    handler = Handler()
    handle = micro_batching(handler, size, {"preprocess": 2, "inference": 2, "postprocess": 2})

    assert handle.handle([1, 2, 3, 4, 5]) == ["10", "20", "30", "40", "50"]
    assert [step for step, _ in handler.calls].count("inference") == batches
    assert sorted(value for step, rows in handler.calls if step == "preprocess" for value in rows) == [1, 2, 3, 4, 5]
    assert handle.handle([]) == []


def test_one_part_is_prepared_while_another_is_in_the_model(micro_batching: Callable[..., MicroBatching]) -> None:
    meeting = threading.Barrier(2, timeout=DEADLINE_SECONDS)

    class Meeting(Handler):
        def preprocess(self, data: list[int]) -> list[int]:
            if data == [2]:
                meeting.wait()
            return data

        def inference(self, data: list[int]) -> list[int]:
            if data == [1]:
                meeting.wait()
            return data

    assert micro_batching(Meeting()).handle([1, 2]) == ["1", "2"]


def test_a_step_runs_in_as_many_threads_as_configured(micro_batching: Callable[..., MicroBatching]) -> None:
    meeting = threading.Barrier(3, timeout=DEADLINE_SECONDS)

    class Meeting(Handler):
        def inference(self, data: list[int]) -> list[int]:
            meeting.wait()
            return data

    handle = micro_batching(Meeting())
    handle.parallelism = {"inference": 3}

    assert handle.parallelism == {"preprocess": 1, "inference": 3, "postprocess": 1}
    assert handle.handle([1, 2, 3]) == ["1", "2", "3"]


def test_a_failure_is_the_batchs_and_nothing_runs_on_after_it(micro_batching: Callable[..., MicroBatching]) -> None:
    class Failing(Handler):
        def inference(self, data: list[int]) -> list[int]:
            if data == [2]:
                raise RuntimeError("out of luck")
            return super().inference(data)

    handler = Failing()
    handle = micro_batching(handler)

    with pytest.raises(RuntimeError, match="out of luck"):
        handle.handle([1, 2, 3])
    done = list(handler.calls)

    assert handle.handle([4]) == ["40"]
    assert handler.calls[len(done) :] == [("preprocess", [4]), ("inference", [4]), ("postprocess", [40])]


def test_a_batch_may_mix_predictions_and_explanations(micro_batching: Callable[..., MicroBatching]) -> None:
    class Mixed(Handler):
        def explain_handle(self, prepared: Any, data: Any) -> Any:
            return [("explained", value) for value in data]

    context = Context("m", "/m", None, 3, None, "0", metrics=MetricsCache("m"))
    context.request_processor = [RequestProcessor({"explain": str(value == 2)}) for value in (1, 2, 3)]

    assert micro_batching(Mixed())([1, 2, 3], context) == ["10", ("explained", 2), "30"]


def test_a_step_can_tell_which_micro_batch_it_works_on(micro_batching: Callable[..., MicroBatching]) -> None:
    class Telling(Handler):
        def inference(self, data: list[int]) -> list[int]:
            return [100 * (handle.get_micro_batch_idx() or 0) + value for value in data]

    handle = micro_batching(Telling(), 2)

    assert handle.handle([1, 2, 3]) == ["1", "2", "103"]
    assert handle.get_micro_batch_idx() is None


@pytest.mark.parametrize(
    ("header", "expected"),
    [("none", ["10", "20"]), ("describe", ["described"]), ("explain", [("explained", [1, 2], [1, 2])])],
)
def test_it_stands_in_for_the_handlers_own_handle(
    micro_batching: Callable[..., MicroBatching], header: str, expected: list[Any]
) -> None:
    context = Context("m", "", None, 1, None, "", metrics=MetricsCache("m"))
    context.request_processor = [RequestProcessor({header: "True"})]
    handler = Handler()

    assert micro_batching(handler)([1, 2], context) == expected
    assert handler.context is context
    assert [record[0] for record in context.metrics.take_records()] == ["HandlerTime"]


def test_a_handler_streams_from_its_micro_batches(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.micro_batching import MicroBatching
        from ts.handler_utils.utils import send_intermediate_predict_response

        class Streaming:
            def __init__(self):
                self.handle = MicroBatching(self, 2, {"inference": 2})

            def initialize(self, context):
                pass

            def preprocess(self, data):
                return [bytes(row["body"]) for row in data]

            def inference(self, data):
                first = 2 * self.handle.get_micro_batch_idx()
                rows = {row: self.context.request_ids[row] for row in range(first, first + len(data))}
                parts = {row: data[row - first] for row in rows}
                send_intermediate_predict_response(parts, rows, "", 200, self.context)
                return data

            def postprocess(self, data):
                return [body.upper() for body in data]

            def _is_describe(self):
                return False

            _is_explain = _is_describe
        """
    )

    parts: dict[str, list[tuple[bytes, bool]]] = {}
    for job_id, more, status, _, _, body, _ in worker.infer(row("1", b"a"), row("2", b"b"), row("3", b"c")):
        assert status == 200
        parts.setdefault(job_id, []).append((body, more))

    assert parts == {
        "1": [(b"a", True), (b"A", False)],
        "2": [(b"b", True), (b"B", False)],
        "3": [(b"c", True), (b"C", False)],
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "micro_batch_size must be at least 1, got 0"),
        ((1, {"inference": 0}), "the step inference needs at least 1 thread, got 0"),
        ((1, {"thinking": 1}), "there is no step 'thinking'"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MicroBatching(Handler(), *arguments)
