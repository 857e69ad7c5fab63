"""Request envelopes around a handler, in a worker: every request of a batch is unwrapped, and answered for itself."""

import asyncio
import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.ts.frontend_stub import BACKEND, Worker, load_message, row

from ts.jobs.errors import LoadError
from ts.runtime.loader import load_service
from ts.torch_handler.request_envelope.envelope_tensors import write_tensor

#: Answers with what it is given, and remembers it.
ECHO = """
    seen = []

    def handle(data, context):
        if data is None:
            return None
        seen.append(list(data))
        return list(data)
"""

MakeWorker = Callable[..., Worker]


def ask(job_id: str, body: Any, headers: Any = ()) -> list[Any]:
    """Return an infer row with a JSON body."""
    return row(job_id, json.dumps(body).encode(), "application/json", headers)


def answers(worker: Worker, *rows: list[Any]) -> list[tuple[int, Any]]:
    """Return status and JSON body of the answers, or the error's message, in the order of the requests."""
    results = {job_id: (status, body, error) for job_id, _, status, _, _, body, error in worker.infer(*rows)}
    found = []
    for job_id, *_ in rows:
        status, body, error = results[job_id]
        assert (error is None) == (status < 400)
        found.append((status, json.loads(body) if error is None else error))
    return found


def seen(worker: Worker) -> list[list[Any]]:
    """Return what the handler `ECHO` was called with."""
    handler = worker.service.entry_point.__self__._handle_fn  # type: ignore[attr-defined]
    calls: list[list[Any]] = sys.modules[handler.__module__].seen  # type: ignore[attr-defined]
    return calls


def test_body_unwraps_the_value_of_each_row(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO, envelope="body")

    results = worker.infer(
        row("a", b"text", "text/plain"),
        ask("b", [1, 2]),
        row("c", [["data", "application/json", b"0"], ["body", None, b"x"]]),
    )

    assert [body for *_, body, _ in results] == [b"text", b"[\n  1,\n  2\n]", b"0"]
    assert seen(worker) == [["text", [1, 2], 0]]


def test_json_concatenates_the_instances_of_every_request_and_splits_the_predictions(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO, envelope="json")

    rows = [ask("a", {"instances": [1, 2]}), ask("b", {"instances": []}), ask("c", {"instances": [{"x": 3}]})]

    assert answers(worker, *rows) == [
        (200, {"predictions": [1, 2]}),
        (200, {"predictions": []}),
        (200, {"predictions": [{"x": 3}]}),
    ]
    assert seen(worker) == [[1, 2, {"x": 3}]]


def test_json_decodes_base64_and_answers_text_on_one_line(make_worker: MakeWorker) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            return None if data is None else [instance.decode() for instance in data]
        """,
        envelope="json",
    )
    encoded = base64.b64encode(b"bytes").decode()

    [result] = worker.infer(ask("a", {"instances": [{"b64": encoded}]}))

    assert result[5] == b'{"predictions": ["bytes"]}'


@pytest.mark.parametrize("envelope", ["json", "kserve", "kservev2"])
@pytest.mark.parametrize(
    ("content_type", "body", "message"),
    [
        ("application/json", b"{broken", "The request body is no JSON"),
        (None, b"", "The request body is no JSON"),
        ("application/json", b"[1]", "must be a JSON object"),
        ("application/json", b'{"other": 1}', "it holds ['other']"),
        ("application/json", b'{"instances": 1, "inputs": 1}', "of the request body must be a list, it is 1"),
    ],
)
def test_a_wrong_request_is_told_so_and_its_batch_mates_are_served(
    make_worker: MakeWorker, envelope: str, content_type: str | None, body: bytes, message: str
) -> None:
    worker = make_worker(ECHO, envelope=envelope)
    right = {"instances": ["x"], "inputs": [{"name": "i", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}

    (bad_status, bad), (status, good) = answers(worker, row("bad", body, content_type), ask("good", right))

    assert bad_status == 400
    assert message in bad
    assert status == 200
    assert good.get("predictions", ["x"]) == ["x"]


def test_the_handler_is_not_called_where_no_request_holds_anything_for_it(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO, envelope="json")

    assert answers(worker, ask("a", {"instances": [{"b64": "?"}]}))[0][0] == 400
    assert answers(worker, ask("a", {"instances": []})) == [(200, {"predictions": []})]
    assert seen(worker) == []


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream", None])
def test_kserve_serves_every_request_of_a_batch(make_worker: MakeWorker, content_type: str | None) -> None:
    worker = make_worker(ECHO, envelope="kserve")

    found = answers(
        worker,
        row("a", b'{"instances": [[1.5], [2]]}', content_type),
        row("b", b'{"instances": ["x"]}', content_type, (("explain", "True"),)),
    )

    assert found == [(200, {"predictions": [[1.5], [2]]}), (200, {"explanations": ["x"]})]


def test_a_request_alone_gets_all_results_however_many_there_are(make_worker: MakeWorker) -> None:
    source = "def handle(data, context):\n    return None if data is None else [7]"
    worker = make_worker(source, envelope="kserve")

    assert answers(worker, ask("a", {"instances": [1, 2]})) == [(200, {"predictions": [7]})]
    results = worker.infer(ask("a", {"instances": [1, 2]}), ask("b", {"instances": [1]}))
    assert {(status, error) for _, _, status, _, _, _, error in results} == {
        (503, "number of batch response mismatched")
    }


def test_kservev2_reads_and_writes_tensors_of_every_request(make_worker: MakeWorker) -> None:
    source = "def handle(data, context):\n    return None if data is None else [row['data'] for row in data]"
    worker = make_worker(source, envelope="kservev2", model_name="m", model_version="2.0")
    first = {
        "id": "mine",
        "inputs": [
            {"name": "image", "datatype": "FP32", "shape": [2, 2], "data": [1, 2, 3, 4]},
            {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]},
        ],
    }
    second = {"inputs": [{"name": "flags", "datatype": "BOOL", "shape": [2], "data": [True, False]}]}

    assert answers(worker, ask("job-1", first), ask("job-2", second)) == [
        (
            200,
            {
                "id": "mine",
                "model_name": "m",
                "model_version": "2.0",
                "outputs": [
                    {"name": "image", "datatype": "FP64", "data": [1.0, 2.0, 3.0, 4.0], "shape": [2, 2]},
                    {"name": "text", "datatype": "BYTES", "data": ["hi"], "shape": [1]},
                ],
            },
        ),
        (
            200,
            {
                "id": "job-2",
                "model_name": "m",
                "model_version": "2.0",
                "outputs": [{"name": "flags", "datatype": "BOOL", "data": [True, False], "shape": [2]}],
            },
        ),
    ]


def test_rows_of_kservev2_are_the_inputs_as_in_torchserve_and_dicts_stay_dicts(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO, envelope="kservev2")
    image = {"name": "image", "datatype": "UINT8", "shape": [2, 1], "data": [1, 2], "parameters": {"a": 1}}
    text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}

    [(status, answer)] = answers(worker, ask("a", {"inputs": [image, text]}))

    rows = [{**image, "data": [[1], [2]]}, {**text, "data": "hi"}]
    assert seen(worker) == [rows]
    assert (status, answer["outputs"]) == (
        200,
        [
            {"name": "image", "datatype": "BYTES", "data": [rows[0]], "shape": [1]},
            {"name": "text", "datatype": "BYTES", "data": [rows[1]], "shape": [1]},
        ],
    )


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ({"name": "a", "datatype": "FP32", "shape": [3], "data": [1]}, "'a' is no tensor of FP32 with the shape [3]"),
        ({"name": "a", "datatype": "UINT8", "shape": [1], "data": [300]}, "'a' is no tensor of UINT8"),
        ({"name": "a", "datatype": "INT32", "shape": [1], "data": ["x"]}, "'a' is no tensor of INT32"),
        ({"name": "a", "datatype": "FP8", "shape": [1], "data": [1]}, "'FP8'; known are BOOL"),
        ({"name": "a", "datatype": "FP32", "shape": [1]}, 'must hold the list "data"'),
        ("tensor", "must be a JSON object"),
    ],
)
def test_what_is_no_tensor_is_named(make_worker: MakeWorker, tensor: Any, message: str) -> None:
    [(status, body)] = answers(make_worker(ECHO, envelope="kservev2"), ask("a", {"inputs": [tensor]}))
    assert status == 400
    assert message in body


@pytest.mark.parametrize(
    ("result", "datatype", "shape", "data"),
    [
        (np.array([[1, 2]], dtype=np.int32), "INT32", [1, 2], [1, 2]),
        (np.float32(0.5), "FP32", [1], [0.5]),
        (np.array(["a", "b"]), "BYTES", [2], ["a", "b"]),
        (1, "INT64", [1], [1]),
        (True, "BOOL", [1], [True]),
        (0.5, "FP64", [1], [0.5]),
        ([1, 0.5], "FP64", [2], [1, 0.5]),
        ([[1, 2, 3], [4, 5, 6]], "INT64", [2, 3], [1, 2, 3, 4, 5, 6]),
        ([], "FP32", [0], []),
        (2**70, "BYTES", [1], [str(2**70)]),
        ([[1], [2, 3]], "BYTES", [1], ["[[1], [2, 3]]"]),
        ([True, 1], "BYTES", [1], ["[true, 1]"]),
        ("text", "BYTES", [1], ["text"]),
        (b"bytes", "BYTES", [1], ["bytes"]),
        (["a", "b"], "BYTES", [2], ["a", "b"]),
        ({"cat": 0.9}, "BYTES", [1], ['{"cat": 0.9}']),
        (None, "BYTES", [1], ["null"]),
    ],
)
def test_results_become_tensors(result: Any, datatype: str, shape: list[int], data: list[Any]) -> None:
    assert write_tensor("o", result) == {"name": "o", "datatype": datatype, "data": data, "shape": shape}


@pytest.mark.torch
def test_torch_tensors_become_tensors() -> None:
    torch = pytest.importorskip("torch")
    assert write_tensor("o", torch.tensor([[1.0, 2.0]], requires_grad=True)) == {
        "name": "o",
        "datatype": "FP32",
        "data": [1.0, 2.0],
        "shape": [1, 2],
    }
    assert write_tensor("o", torch.tensor([0.5], dtype=torch.bfloat16))["datatype"] == "FP32"


@pytest.mark.parametrize("envelope", ["json", "kservev2"])
def test_results_that_json_does_not_know_fail(make_worker: MakeWorker, envelope: str) -> None:
    source = "def handle(data, context):\n    return None if data is None else [object()]"
    request = {"instances": [1], "inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}

    [result] = make_worker(source, envelope=envelope).infer(ask("a", request))

    assert (result[2], result[6]) == (503, "Unsupported model output data type.")


@pytest.mark.parametrize("envelope", ["body", "json", "kserve", "kservev2"])
def test_a_request_to_describe_the_model_passes_through(make_worker: MakeWorker, envelope: str) -> None:
    source = "def handle(data, context):\n    return None if data is None else [{'rows': len(data), 'is': data[0]}]"

    [result] = make_worker(source, envelope=envelope).infer(row("a", [], None, (("describe", "True"),)))

    assert json.loads(result[5]) == {"rows": 1, "is": {}}


@pytest.mark.parametrize("envelope", ["body", "json", "kserve", "kservev2"])
def test_what_the_handler_returns_instead_of_a_list_is_its_error(make_worker: MakeWorker, envelope: str) -> None:
    source = "def handle(data, context):\n    return None if data is None else 'text'"
    request = {"instances": [1], "inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}

    [result] = make_worker(source, envelope=envelope).infer(ask("a", request))

    assert (result[2], result[6]) == (503, "Invalid model predict output")


def test_an_unknown_envelope_is_named(make_worker: MakeWorker) -> None:
    with pytest.raises(LoadError, match="no service envelope 'soap'"):
        make_worker(ECHO, envelope="soap")


@pytest.mark.parametrize("envelope", ["json", "kserve", "kservev2"])
@pytest.mark.parametrize("mode", ["continuous", "asynchronous"])
def test_envelopes_that_need_whole_batches_are_refused_where_there_are_none(
    model: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envelope: str, mode: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "async def handle(data, context):" if mode == "asynchronous" else "def handle(data, context):"
    message = load_message(tmp_path, model(f"{source}\n        return data"), envelope=envelope, **{mode: True})

    with pytest.raises(LoadError, match=rf"'{envelope}' works neither with continuousBatching nor with asyncComm"):
        load_service(message, wait_for=asyncio.run if mode == "asynchronous" else None)  # type: ignore[arg-type]


def test_body_unwraps_rows_of_continuous_batches(make_worker: MakeWorker) -> None:
    worker = make_worker(ECHO, envelope="body", continuous=True)

    assert worker.infer(row("a", b"text", "text/plain"))[0][5] == b"text"


def test_envelopes_import_neither_numpy_nor_torch() -> None:
    names = ["body", "json", "kserve", "kservev2"]
    code = "import sys, importlib\n" + "".join(
        f"importlib.import_module('ts.torch_handler.request_envelope.{name}')\n" for name in names
    )
    code += "print([name for name in ('torch', 'numpy') if name in sys.modules])"

    result = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(BACKEND)}, capture_output=True, text=True, check=True
    )

    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "shape", [[2**63 - 25] * 100_000, [2**62] * 60, [2**40, 0], [2**40, -1]], ids=["deep", "large", "empty", "open"]
)
def test_a_shape_that_the_data_cannot_have_is_the_error_of_its_request(
    make_worker: MakeWorker, shape: list[int]
) -> None:
    hostile = {"name": "x", "datatype": "FP32", "shape": shape, "data": []}
    good = {"name": "x", "datatype": "FP32", "shape": [1], "data": [3]}

    worker = make_worker(ECHO, envelope="kservev2")
    refused, answered = answers(worker, ask("a", {"inputs": [hostile]}), ask("b", {"inputs": [good]}))

    assert (refused[0], answered[0]) == (400, 200)
    assert "Input 'x' is no tensor of FP32 with the shape [" in refused[1]
    assert len(refused[1]) < 2000
