"""model-config.yaml: the tensors of a model, how `BaseHandler` computes, and the warm-up."""

import re
from pathlib import Path

import pytest

from torchserve_py.core.plans.config import InvalidModelConfig, read_model_config


def problems(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "model-config.yaml"
    path.write_text(text)
    with pytest.raises(InvalidModelConfig) as error:
        read_model_config(path)
    return list(error.value.problems)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("autocast: int8", "line 1: autocast is 'int8' (str), it must be one of bfloat16, float16"),
        ("dtype: float32", "line 1: dtype is 'float32' (str), it must be one of bfloat16, float16"),
        ("channelsLast: 1", "line 1: channelsLast is 1 (int), it must be true or false"),
        (
            "warmup: {file: x}",
            "line 1: warmup is {'file': 'x'} (dict), it must be a list of requests, for example "
            "[{file: sample.json, contentType: application/json}]",
        ),
        (
            "warmup: [{file: ../x}]",
            "line 1: warmup[0].file is '../x' (str), it must be the path of a file in the model's folder",
        ),
        ("warmup: [{fil: x}]", "line 1: warmup[0].fil is not known; known are file, contentType, inputs, rows, calls"),
        (
            "warmup: [{inputs: [{name: x, datatype: FP32, shape: [-1, 3]}]}]",
            "line 1: warmup[0].inputs[0].shape is [-1, 3] (list), it must be a list of integers from 0",
        ),
        ("warmup: [{file: x, rows: 0}]", "line 1: warmup[0].rows is 0 (int), it must be an integer from 1"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_right(tmp_path: Path, text: str, expected: str) -> None:
    assert problems(tmp_path, text) == [expected]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("autocast: float16\npt2: {export: {aot_compile: true}}", ["autocast is float16", "compiled ahead of time"]),
        ("dtype: float16\npt2: {export: {aot_compile: true}}", ["dtype is float16", "compiled ahead of time"]),
        ("dtype: float16\nautocast: bfloat16", ["dtype is float16", "autocast is bfloat16", "keep one"]),
        ("warmup: [{rows: 1}]", ["warmup[0]", "file or inputs"]),
        (
            "warmup: [{file: x, inputs: [{name: x, datatype: FP32, shape: [1]}]}]",
            ["warmup[0]", "file or inputs, and not both"],
        ),
        (
            "warmup: [{contentType: text/plain, inputs: [{name: x, datatype: FP32, shape: [1]}]}]",
            ["warmup[0].contentType", "leave it out"],
        ),
        ("warmup: [{file: x}]\nparallelType: pp\nparallelLevel: 2", ["warmup", "parallelType: pp", "rank 0"]),
    ],
)
def test_a_contradiction_is_named(tmp_path: Path, text: str, named: list[str]) -> None:
    (problem,) = problems(tmp_path, text)
    assert all(each in problem for each in named)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ("x", r"inputs is 'x' \(str\), it must be a list of one or more tensors"),
        ("[]", r"inputs is \[\] \(list\), it must be a list of one or more tensors"),
        ("[x]", r"inputs\[0\] is 'x' \(str\), it must be a map with name, datatype and shape"),
        ("[{name: x, datatype: FP32}]", r"inputs\[0\].shape is missing, it must be a list of integers"),
        ("[{name: x, datatype: float, shape: [1]}]", r"inputs\[0\].datatype is 'float' \(str\), it must be one of"),
        ("[{name: x, datatype: [FP32], shape: [1]}]", r"inputs\[0\].datatype is .* it must be one of"),
        ("[{name: '', datatype: FP32, shape: [1]}]", r"inputs\[0\].name is '' \(str\), it must be a text"),
        ("[{name: x, datatype: FP32, shape: [-2]}]", r"inputs\[0\].shape is \[-2\] \(list\), it must be a list of int"),
        ("[{name: x, datatype: FP32, shape: [true]}]", r"inputs\[0\].shape is \[True\] \(list\), it must be a list of"),
        ("[{name: x, datatype: FP32, shape: 1}]", r"inputs\[0\].shape is 1 \(int\), it must be a list of integers"),
        (
            "[{name: x, datatype: FP32, shape: [1], size: 1}]",
            r"inputs\[0\].size is not known; known are name",
        ),
        (
            "[{name: x, datatype: FP32, shape: [1]}, {name: x, datatype: FP32, shape: [1]}]",
            r"inputs is .* it must be a list of one or more tensors, each with a name of its own",
        ),
    ],
)
def test_what_is_no_list_of_tensors_is_refused(tmp_path: Path, tensors: str, problem: str) -> None:
    (told,) = problems(tmp_path, f"inputs: {tensors}\n")
    assert re.match(f"line 1: {problem}", told)
