"""Warm-up requests: what the handler gets, and what fails the load."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sequences.steps.stepping import answered, step
from tests.unit.ts.frontend_stub import Worker, load_message

from ts.contracts.warm_up.warm_up import prepare
from ts.jobs.errors import LoadError

#: Keeps what each call gets: rows, and the ids of the requests.
REMEMBERS = """
    calls = []

    def handle(data, context):
        if data is None:
            return None
        calls.append(data)
        context.metrics.add_counter("Calls", 1)
        return [str(row) for row in data]
"""


def request(**changes: Any) -> dict[str, Any]:
    return {"file": None, "content_type": None, "inputs": [], "rows": 1, "calls": 1, **changes}


def run(worker: Worker, model_dir: Path, *requests: dict[str, Any]) -> None:
    message: Any = load_message(model_dir)
    prepare(worker.service, worker.runtime, message, list(requests))  # type: ignore[arg-type]


@pytest.fixture
def sample(tmp_path: Path) -> str:
    (tmp_path / "sample.json").write_text('{"text": "hello"}')
    return "sample.json"


def test_a_file_is_a_requests_body(
    make_worker: Callable[..., Worker], tmp_path: Path, sample: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = make_worker(REMEMBERS)
    with caplog.at_level(logging.INFO):
        run(
            worker,
            tmp_path,
            request(file=sample, content_type="application/json", rows=3, calls=2),
            request(file=sample),
        )
    parsed = {"body": {"text": "hello"}}
    assert worker.module.calls == [[parsed] * 3, [parsed] * 3, [{"body": bytearray(b'{"text": "hello"}')}]]
    first, second = (record.getMessage() for record in caplog.records if "Warm-up" in record.getMessage())
    assert "Warm-up request 0 (sample.json, 3 in a batch) took" in first
    assert "the last of 2 calls" in first
    assert second.endswith(" ms")


def test_nothing_of_it_reaches_the_server(make_worker: Callable[..., Worker], tmp_path: Path, sample: str) -> None:
    worker = make_worker(REMEMBERS)
    run(worker, tmp_path, request(file=sample))
    assert worker.peer.arrived() == []
    assert worker.service.context.metrics.take_records() == []


def test_tensors_are_zeros_of_their_shape(make_worker: Callable[..., Worker], tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    worker = make_worker(REMEMBERS)
    inputs = [["image", "FP32", [2, 3]], ["half", "BF16", [2]], ["words", "BYTES", [2]], ["one", "INT64", []]]
    run(worker, tmp_path, request(inputs=inputs), request(inputs=inputs[:1]))
    ((row,), (alone,)) = worker.module.calls
    assert row["image"].dtype == numpy.float32
    assert row["image"].shape == (2, 3)
    assert not row["image"].any()
    assert row["half"].shape == (2,)
    assert row["words"] == [b"", b""]
    assert row["one"].shape == ()
    assert alone["body"].shape == (2, 3)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("raise RuntimeError('no kernel')", "RuntimeError: no kernel"),
        ("return ['one too few'] * (len(data) - 1)", "number of batch response mismatched"),
        ("return [object() for _ in data]", "Unsupported model output data type."),
        ("context.request_processor[1].report_status(400); return ['bad image'] * 2", "status 400: bad image"),
        ("context.send_part(['x'] * 2, {0: 'a', 1: 'b'}, 'out of range', 500)", "status 500: out of range"),
    ],
)
def test_a_request_that_fails_fails_the_load(
    make_worker: Callable[..., Worker], tmp_path: Path, sample: str, statement: str, reason: str
) -> None:
    worker = make_worker(
        f"""
        def handle(data, context):
            if data is not None:
                {statement}
        """
    )
    with pytest.raises(LoadError) as failed:
        run(worker, tmp_path, request(file=sample, rows=2))
    assert str(failed.value).startswith("Warm-up request 0 (sample.json, 2 in a batch) failed: ")
    assert reason in str(failed.value)


def test_parts_of_a_response_go_nowhere(make_worker: Callable[..., Worker], tmp_path: Path, sample: str) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is not None:
                send_intermediate_predict_response(["part"], context.request_ids, "ok", 200, context)
                return ["last"]
        """
    )
    run(worker, tmp_path, request(file=sample))
    assert worker.peer.arrived() == []


def test_a_coroutine_is_run_to_its_end(make_worker: Callable[..., Worker], tmp_path: Path, sample: str) -> None:
    worker = make_worker(REMEMBERS)
    calls, handle = worker.module.calls, worker.service.entry_point

    async def later(data: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return handle(data, context)

    worker.service.entry_point = later
    message: Any = load_message(tmp_path)
    requests: Any = [request(file=sample)]
    with asyncio.Runner() as runner:
        prepare(worker.service, worker.runtime, message, requests, runner.get_loop().run_until_complete)
    assert len(calls) == 1


#: Counts the steps of each sequence, and the calls; after the calls of the warm-up no sequence is known.
COUNTS_STEPS = """
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            self.steps = SequenceCache(context)
            self.calls = []

        def handle(self, data, context):
            ids = [context.get_sequence_id(index) for index in range(len(data))]
            for index, name in enumerate(ids):
                assert context.is_start(index) == (name not in self.steps)
                self.steps[name] = self.steps.get(name, 0) + 1
            self.calls.append([self.steps[name] for name in ids])
            return [str(self.steps[name]) for name in ids]
"""


@pytest.fixture(params=["memory", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_rows_of_a_batch_are_sequences_of_their_own_which_nobody_finds_later(
    make_worker: Callable[..., Worker], cache_settings: Callable[[], Any], tmp_path: Path, sample: str
) -> None:
    cache = cache_settings()
    worker = make_worker(COUNTS_STEPS, sequences=True, cache=cache)
    message: Any = load_message(tmp_path, sequences=True, cache=cache)
    requests: Any = [request(file=sample, rows=3, calls=2), request(file=sample)]
    prepare(worker.service, worker.runtime, message, requests)
    handler: Any = worker.service.entry_point.__self__  # type: ignore[attr-defined]
    assert handler.calls == [[1, 1, 1], [2, 2, 2], [1]]
    assert len(handler.steps) == 0
    assert answered(worker, step("a", "warm-up-0", "x"), step("b", "mine", "x")) == ["1", "1"]
    assert answered(worker, step("c", "mine", "x")) == ["2"]


#: The rows end one after another, the first one last.
STREAMS = """
    calls = []

    def handle(data, context):
        if data is None:
            return None
        calls.append(len(data))
        left = STEPS - len(calls)
        context.stopping_criteria = [lambda _, more=index: left <= more for index in range(len(data))]
        return [None if index else str(left) for index in range(len(data))]
"""


def test_a_continuous_handler_is_called_until_all_rows_have_ended(
    make_worker: Callable[..., Worker], tmp_path: Path, sample: str
) -> None:
    worker = make_worker(STREAMS.replace("STEPS", "4"), continuous=True)
    run(worker, tmp_path, request(file=sample, rows=3))
    assert worker.module.calls == [3, 3, 2, 1]


def test_a_continuous_handler_that_never_ends_fails_the_load(
    make_worker: Callable[..., Worker], tmp_path: Path, sample: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ts.contracts.warm_up.warm_up._MOST_STEPS", 20)
    worker = make_worker(STREAMS.replace("STEPS", "1000"), continuous=True)
    with pytest.raises(LoadError, match="has not ended 1 rows in 20 steps"):
        run(worker, tmp_path, request(file=sample))
