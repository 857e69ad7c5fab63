"""TorchServe handlers answer Open Inference requests: what a handler gets, and what its result becomes."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import Worker, row

from ts.apis.open_inference.rest import ENDPOINT
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow

RETURNING = """
import numpy as np
try:
    import torch
except ImportError:
    torch = None

def handle(data, context):
    if data is None:
        return None
    return [{result} for row in data]
"""
_BINARY = ("inference-header-content-length", "content-type")


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def request(job_id: str, *inputs: dict[str, Any], endpoint: str | None = None, **members: Any) -> InferRow:
    headers = [[ENDPOINT, endpoint]] if endpoint else []
    body = json.dumps({"inputs": inputs, **members}).encode()
    return InferRow(job_id, headers, "application/json", body, OPEN_INFERENCE_REST, False)


TEXT = tensor("prompt", "BYTES", [1], ["hi"])
NUMBERS = tensor("x", "FP32", [2, 2], [[1, 2], [3, 4]])


def answered(rows: list[list[Any]]) -> dict[str, Any]:
    [[_, more, status, _, _, body, error]] = rows
    assert (more, status, error) == (False, 200, None), error
    document: dict[str, Any] = json.loads(body)
    return document


def outputs(rows: list[list[Any]]) -> list[tuple[Any, ...]]:
    return [tuple(each.get(key) for key in ("name", "datatype", "shape", "data")) for each in answered(rows)["outputs"]]


def test_one_input_is_the_body_and_has_its_name(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(RETURNING.format(result='row["body"] + row["prompt"]'))
    rows = worker.infer(request("a", TEXT, id="7"))
    document = answered(rows)
    assert document["id"] == "7"
    assert (document["model_name"], document["model_version"]) == ("echo", "1.0")
    assert outputs(rows) == [("prompt", "BYTES", [1], ["hihi"])]
    assert rows[0][4] == [["content-type", "application/json"]]


def test_numbers_are_arrays_that_may_be_written_to(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is None:
                return None
            for row in data:
                row["x"] += 1
            return [row["x"].T for row in data]
        """
    )
    assert outputs(worker.infer(request("a", NUMBERS))) == [("x", "FP32", [2, 2], [2.0, 4.0, 3.0, 5.0])]
    raw = tensor("x", "FP32", [1], None) | {"parameters": {"binary_data_size": 4}}
    wire_row = request("b", raw)
    headers = [(b"Inference-Header-Content-Length", str(len(wire_row.body)).encode())]
    wire_row = wire_row._replace(headers=headers, body=wire_row.body + b"\0\0\x80?")
    assert outputs(worker.infer(wire_row)) == [("x", "FP32", [1], [2.0])]


def test_several_inputs_stand_under_their_names(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(RETURNING.format(result='sorted(row) + [row["prompt"]]'))
    rows = worker.infer(request("a", TEXT, NUMBERS))
    assert outputs(rows) == [("prompt", "BYTES", [3], ["prompt", "x", "hi"])]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ('"text"', ("prompt", "BYTES", [1], ["text"])),
        ('b"text"', ("prompt", "BYTES", [1], ["text"])),
        ('["a", "b"]', ("prompt", "BYTES", [2], ["a", "b"])),
        ("3", ("prompt", "INT64", [1], [3])),
        ("0.5", ("prompt", "FP64", [1], [0.5])),
        ("True", ("prompt", "BOOL", [1], [True])),
        ("[[1, 2], [3, 4]]", ("prompt", "INT64", [2, 2], [1, 2, 3, 4])),
        ('{"cat": 0.5}', ("prompt", "BYTES", [1], ['{"cat": 0.5}'])),
        ("None", ("prompt", "BYTES", [1], ["null"])),
        ("np.ones((1, 2), dtype=np.int8)", ("prompt", "INT8", [1, 2], [1, 1])),
        ("np.float32(2)", ("prompt", "FP64", [1], [2.0])),
        ('np.array(["a"])', ("prompt", "BYTES", [1], ["a"])),
        ("np.array([np.nan])", ("prompt", "FP64", [1], [None])),
    ],
)
def test_a_result_becomes_a_tensor(make_worker: Callable[..., Worker], result: str, expected: tuple[Any, ...]) -> None:
    worker = make_worker(RETURNING.replace("{result}", result))
    assert outputs(worker.infer(request("a", TEXT))) == [expected]


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("FP32", "np.full((100, 200), 0.5)", [0.5] * 20_000),
        ("FP32", "[[1, 2], (3, 4)]", [1, 2, 3, 4]),
        ("INT8", "np.ones(3, dtype=np.int64)", [1, 1, 1]),
        ("INT64", "np.array(7.0)", [7]),
        ("UINT64", "np.array([2.0**63, 0])", [2**63, 0]),
        ("BYTES", 'np.array(["a", "b"])', ["a", "b"]),
    ],
)
def test_an_output_that_the_handler_has_written_itself(
    make_worker: Callable[..., Worker], datatype: str, data: str, expected: list[Any]
) -> None:
    output = f'{{"name": "y", "datatype": "{datatype}", "shape": [{len(expected)}], "data": {data}}}'
    worker = make_worker(RETURNING.replace("{result}", f'{{"outputs": [{output}]}}'))
    assert outputs(worker.infer(request("a", TEXT))) == [("y", datatype, [len(expected)], expected)]


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("FP23", "np.ones(2)", "'y' has the datatype 'FP23'; known are BOOL"),
        ("INT8", "np.array([1, 300])", "'y' holds 300, which is no INT8"),
        ("UINT8", "np.array([-1, 2])", "'y' holds -1, which is no UINT8"),
        ("INT64", "np.array([[1.0, 0.5]])", "'y' holds 0.5, which is no INT64"),
        ("INT32", "np.array([1, np.nan])", "'y' holds nan, which is no INT32"),
        ("INT64", "np.array([2**63, 1], dtype=np.uint64)", "'y' holds 9223372036854775808, which is no INT64"),
    ],
)
def test_an_array_that_is_not_what_the_handler_says_is_an_error(
    make_worker: Callable[..., Worker], datatype: str, data: str, words: str
) -> None:
    output = f'{{"name": "y", "datatype": "{datatype}", "shape": [2], "data": {data}}}'
    worker = make_worker(RETURNING.replace("{result}", f'{{"outputs": [{output}]}}'))
    [[_, _, status, _, _, _, error]] = worker.infer(request("a", TEXT))
    assert (status, words in error) == (500, True), error


@pytest.mark.torch
def test_torch_tensors_keep_their_type(make_worker: Callable[..., Worker]) -> None:
    pytest.importorskip("torch")
    worker = make_worker(RETURNING.replace("{result}", "torch.tensor([1.5, 2], dtype=torch.bfloat16)"))
    assert outputs(worker.infer(request("a", TEXT))) == [("prompt", "BF16", [2], [1.5, 2.0])]
    row = request("b", TEXT, parameters={"binary_data_output": True})
    [[_, _, _, _, headers, body, _]] = worker.infer(row)
    assert body.endswith(b"\xc0?\0@")
    assert sorted(name.lower() for name, _ in headers) == sorted(_BINARY)


def test_arrays_by_name_and_in_a_list_are_several_outputs(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(RETURNING.replace("{result}", '{"a": np.zeros(1), "b": np.ones(1, dtype=bool)}'))
    assert [each[:2] for each in outputs(worker.infer(request("a", TEXT)))] == [("a", "FP64"), ("b", "BOOL")]
    assert [each[0] for each in outputs(worker.infer(request("b", TEXT, outputs=[{"name": "b"}])))] == ["b"]
    worker = make_worker(RETURNING.replace("{result}", "[np.zeros(1), np.ones(1)]"))
    assert [each[0] for each in outputs(worker.infer(request("a", TEXT)))] == ["prompt", "output-1"]


def test_an_undeclared_output_is_called_what_the_client_calls_it(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(RETURNING.replace("{result}", '"x"'))
    assert outputs(worker.infer(request("a", TEXT, outputs=[{"name": "OUTPUT0"}])))[0][0] == "OUTPUT0"


DECLARED = """
inputs:
  - {name: prompt, datatype: BYTES, shape: [1]}
outputs:
  - {name: label, datatype: BYTES, shape: [1]}
  - {name: score, datatype: FP32, shape: [1]}
"""


def declared(tmp_path: Path, text: str = DECLARED) -> dict[str, Any]:
    (tmp_path / "model-config.yaml").write_text(text)
    return {"manifest": {"model": {"configFile": "model-config.yaml"}}}


@pytest.mark.parametrize("result", ['{"score": 1, "label": "cat"}', '["cat", 1]', '("cat", np.float64(1))'])
def test_declared_outputs_have_their_names_and_types(
    make_worker: Callable[..., Worker], tmp_path: Path, result: str
) -> None:
    worker = make_worker(RETURNING.replace("{result}", result), **declared(tmp_path))
    assert sorted(outputs(worker.infer(request("a", TEXT)))) == [
        ("label", "BYTES", [1], ["cat"]),
        ("score", "FP32", [1], [1]),
    ]


def test_a_result_that_is_not_what_was_declared_is_an_error(make_worker: Callable[..., Worker], tmp_path: Path) -> None:
    worker = make_worker(RETURNING.replace("{result}", '{"score": [{}]}'), **declared(tmp_path))
    [[_, _, status, _, _, _, error]] = worker.infer(request("a", TEXT))
    assert (status, "'score' is declared as FP32" in error) == (500, True)


def test_a_response_in_the_protocols_shape_goes_out_as_it_is(make_worker: Callable[..., Worker]) -> None:
    result = (
        '{"parameters": {"n": 1}, "outputs": [{"name": "y", "datatype": "INT8", "shape": [1, 2], "data": [[1, 2]], '
        '"parameters": {"content_type": "np"}}]}'
    )
    worker = make_worker(RETURNING.replace("{result}", result))
    document = answered(worker.infer(request("a", TEXT)))
    assert document["parameters"] == {"n": 1}
    assert document["outputs"] == [
        {"name": "y", "shape": [1, 2], "datatype": "INT8", "parameters": {"content_type": "np"}, "data": [1, 2]}
    ]


def test_the_handler_sees_parameters_and_headers(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is None:
                return None
            request = context.get_open_inference_request(0)
            context.set_response_header(0, "X-Cost", "3")
            context.set_response_header(0, "Content-Type", "text/plain")
            return [f"{request.id} {request.parameters['temperature']} {context.get_request_header(0, 'x-user')}"]
        """
    )
    asked = request("a", TEXT, id="7", parameters={"temperature": 0.5})
    rows = worker.infer(asked._replace(headers=[[b"X-User", b"me"]]))
    assert outputs(rows)[0][3] == ["7 0.5 me"]
    assert rows[0][4] == [["X-Cost", "3"], ["content-type", "application/json"]]


def test_a_bad_request_does_not_touch_its_batch_mates(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(RETURNING.format(result='row["body"]'))
    bad = request("bad")._replace(body=b"{")
    plain = row("plain", b"hello", "text/plain")
    results = {row[0]: row for row in worker.infer(request("good", TEXT), bad, plain)}
    assert (results["bad"][2], "no JSON" in results["bad"][6]) == (400, True)
    assert json.loads(results["good"][5])["outputs"][0]["data"] == ["hi"]
    assert results["plain"][5] == b"hello"


@pytest.mark.parametrize(
    ("result", "status", "message"),
    [
        ("1 / 0", 500, "Prediction failed"),
        ("object()", 500, "Unsupported model output data type."),
    ],
)
def test_a_handler_that_fails_is_an_error_of_the_server(
    make_worker: Callable[..., Worker], result: str, status: int, message: str
) -> None:
    worker = make_worker(RETURNING.replace("{result}", result))
    [[_, more, code, _, _, _, error]] = worker.infer(request("a", TEXT))
    assert (more, code, error) == (False, status, message)


def test_the_status_that_a_handler_chooses_is_an_error_with_its_words(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is None:
                return None
            context.set_response_status(422, "no", 0)
            return [{"message": "too long"}]
        """
    )
    [[_, _, status, _, _, _, error]] = worker.infer(request("a", TEXT))
    assert (status, error) == (422, "too long")


def test_every_part_of_a_stream_is_a_response(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            if data is None:
                return None
            for word in ("one", "two"):
                send_intermediate_predict_response([word], context.request_ids, "ok", 200, context)
            return [""]
        """
    )
    rows = worker.infer(request("a", TEXT, endpoint="infer_stream"))
    assert [row[1] for row in rows] == [True, True, False]
    assert [json.loads(row[5])["outputs"][0]["data"] for row in rows[:2]] == [["one"], ["two"]]
    assert (rows[2][5], rows[2][6]) == (b"", None)  # nothing in it: only the end
    assert [row[4] for row in rows] == [[], [], []]


def test_the_steps_of_continuous_batching_are_responses(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        steps = {}

        def handle(data, context):
            if data is None:
                return None
            results = []
            for index in range(len(data)):
                job = context.get_request_id(index)
                steps[job] = steps.get(job, 0) + 1
                results.append(str(steps[job]))
            context.stopping_criteria = [lambda value: value == "3"] * len(data)
            return results
        """,
        continuous=True,
    )
    rows = [*worker.infer(request("a", TEXT, endpoint="infer_stream")), *worker.step(), *worker.step()]
    assert [(row[1], json.loads(row[5])["outputs"][0]["data"]) for row in rows] == [
        (True, ["1"]),
        (True, ["2"]),
        (False, ["3"]),
    ]


@pytest.mark.parametrize("envelope", ["kserve", "kservev2"])
def test_the_envelope_gets_the_request_as_json(make_worker: Callable[..., Worker], envelope: str) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            return None if data is None else [[[2 * x for x in line] for line in row["data"]] for row in data]
        """,
        envelope=envelope,
    )
    doubled = [("x", "FP64", [2, 2], [2.0, 4.0, 6.0, 8.0])]
    assert outputs(worker.infer(request("a", NUMBERS, id="7"))) == doubled
    text = json.dumps({"inputs": [{**NUMBERS, "data": None, "parameters": {"binary_data_size": 16}}]}).encode()
    length = [b"inference-header-content-length", str(len(text)).encode()]
    row = InferRow("b", [length], None, text + struct.pack("<4f", 1, 2, 3, 4), OPEN_INFERENCE_REST, False)
    assert outputs(worker.infer(row)) == doubled


def test_requests_of_both_protocols_of_kserve_share_a_batch(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is not None:
                return [row["data"] if isinstance(row, dict) else 2 * row for row in data]
        """,
        envelope="kserve",
    )
    v1 = InferRow("b", [], "application/json", b'{"instances": [3, 4]}', None, False)
    no_v2 = InferRow("c", [], "application/json", json.dumps({"inputs": [NUMBERS]}).encode(), None, False)
    of_v2, of_v1, refused = worker.infer(request("a", NUMBERS), v1, no_v2)
    assert outputs([of_v2]) == [("x", "FP64", [2, 2], [1.0, 2.0, 3.0, 4.0])]
    assert json.loads(of_v1[5]) == {"predictions": [6, 8]}
    assert (refused[2], "instances" in refused[6]) == (400, True)


def test_dicts_that_the_envelope_passes_on_are_texts_of_json(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        "def handle(data, context):\n    return None if data is None else [{'cat': 1}]", envelope="kservev2"
    )
    assert outputs(worker.infer(request("a", NUMBERS))) == [("x", "BYTES", [1], ['{"cat": 1}'])]


@pytest.mark.parametrize(
    ("name", "numbers"), [("data", [0.0, 1.0]), ("data", [0.0]), ("body", [1.0, 0.0]), ("x", [0.0])]
)
def test_the_idiom_of_torchserves_handlers_finds_an_array(
    make_worker: Callable[..., Worker], name: str, numbers: list[float]
) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            return data and [row.get("data") or row.get("body") for row in data]
        """
    )
    sent = tensor(name, "FP32", [len(numbers)], numbers)
    rows = worker.infer(request("a", sent), request("b", sent))
    assert [answered([row])["outputs"][0]["data"] for row in rows] == [numbers, numbers]


def test_what_is_computed_from_an_array_is_as_true_as_numpy_says(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(
        """
        def handle(data, context):
            if data is None:
                return None
            (array,) = [row["x"] for row in data]
            tried = [array, array[:1], array[:1] > 1, array.copy()[:1] == 0, array.sum()]
            answers = [bool(each) for each in tried]
            try:
                bool(array > 0)
            except ValueError:
                answers.append("several")
            return [" ".join(map(str, answers))]
        """
    )
    ((_, _, _, (told,)),) = outputs(worker.infer(request("a", tensor("x", "FP32", [2], [0.0, 0.0]))))
    assert told == "True False False True False several"
