"""From what a handler returns to response bodies."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ts.jobs.errors import RowFailure
from ts.jobs.json_values import plain
from ts.runtime.result_bodies import encode_body, error_status, failed_row

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=8
)


@pytest.mark.parametrize(
    ("value", "body"),
    [
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        ("ë", "ë".encode()),
        ({"cat": 0.5, "dog": 1}, b'{\n  "cat": 0.5,\n  "dog": 1\n}'),
        ([], b"[]"),
        (None, b"null"),
        (7, b"7"),
    ],
)
def test_the_type_of_an_element_decides_its_body(value: Any, body: bytes) -> None:
    assert encode_body(value) == body


@given(values.filter(lambda value: not isinstance(value, str)))
def test_everything_else_is_json_as_the_standard_library_indents_it(value: Any) -> None:
    assert encode_body(value) == json.dumps(plain(value), indent=2).encode()


def test_numbers_of_numpy_are_numbers_and_what_json_lacks_is_null() -> None:
    result = {
        "one": np.float32(0.5),
        "many": [np.int64(2), np.array([[1.5, math.nan]]), (np.bool_(True), math.inf)],
        np.int64(7): -math.inf,
    }
    expected = {"one": 0.5, "many": [2, [[1.5, None]], [True, None]], "7": None}
    assert json.loads(encode_body(result), parse_constant=pytest.fail) == expected
    assert json.loads(encode_body([np.float32(0.5), math.nan])) == [0.5, None]
    assert json.loads(encode_body(np.arange(2))) == [0, 1]


@pytest.mark.torch
def test_numbers_of_torch_are_numbers_within_a_result() -> None:
    import torch

    weights = torch.tensor([0.5, math.nan], dtype=torch.bfloat16, requires_grad=True)
    assert json.loads(encode_body({"a": torch.tensor(3), "b": [weights]})) == {"a": 3, "b": [[0.5, None]]}


class Vector:
    """An array of some library that this project knows nothing of."""

    def tolist(self) -> list[float]:
        return [0.5, math.nan]


def test_arrays_of_every_library_are_lists() -> None:
    assert json.loads(encode_body({"a": Vector(), "b": [Vector()]})) == {"a": [0.5, None], "b": [[0.5, None]]}


def test_details_of_a_failure_are_json_whatever_they_hold() -> None:
    details = {"input": math.nan, "counted": np.int64(2), "error": ValueError("too long")}
    row = failed_row("job", RowFailure(400, "wrong", details=details))
    assert json.loads(bytes(row.body), parse_constant=pytest.fail) == {"input": None, "counted": 2, "error": "too long"}
    details["itself"] = details
    assert failed_row("job", RowFailure(400, "wrong", details=details)).body == b""


class Untellable(dict[str, Any]):
    """A dict of a handler's own that fails when it is read."""

    def items(self) -> Any:
        raise AttributeError("items")


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": {b"bytes": 1}}, [object()], "\ud800", [Untellable(key=[1])]])
def test_what_cannot_be_written_is_refused_with_torchserves_words(value: Any) -> None:
    with pytest.raises(RowFailure, match=r"^Unsupported model output data type\.$") as raised:
        encode_body(value)

    assert raised.value.status == 503


@pytest.mark.torch
def test_a_tensor_is_written_by_torch_save() -> None:
    import io

    import torch

    body = encode_body(torch.tensor([1.0, 2.0]))

    assert torch.equal(torch.load(io.BytesIO(body), weights_only=True), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize(("code", "status"), [(404, 404), (413, 507), (500, 500), (0, 500), (700, 500), ("400", 500)])
def test_a_handlers_error_code_becomes_an_http_status(code: Any, status: int) -> None:
    assert error_status(code) == status


@pytest.mark.torch
def test_a_tensor_that_cannot_be_saved_is_refused() -> None:
    import torch

    class Local(torch.Tensor):
        """A class that pickle cannot find by its name."""

    with pytest.raises(RowFailure, match="Unsupported model output data type"):
        encode_body(torch.ones(2).as_subclass(Local))
