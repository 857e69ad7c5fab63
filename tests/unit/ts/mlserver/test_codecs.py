"""Codecs turn tensors into Python values and back, and are found by content type, value or type hint."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, List  # noqa: UP035 - models are written with them

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from ts.mlserver import MLModel, ModelSettings
from ts.mlserver.codecs import (
    Base64Codec,
    CodecError,
    DatetimeCodec,
    InputCodec,
    NumpyCodec,
    NumpyRequestCodec,
    PandasCodec,
    RequestCodec,
    StringCodec,
    StringRequestCodec,
    decode_args,
    decode_inference_request,
    get_decoded,
    get_decoded_or_raw,
    has_decoded,
    register_input_codec,
    register_request_codec,
)
from ts.mlserver.codecs.registry import find_input_codec, find_request_codec
from ts.mlserver.errors import MLServerError
from ts.mlserver.types import (
    InferenceRequest,
    InferenceResponse,
    Parameters,
    RequestInput,
    RequestOutput,
    ResponseOutput,
    TensorData,
)

BACKEND = Path(__file__).resolve().parents[4] / "backend"
TIMES = [datetime(2024, 5, 1, 12, 30), datetime(2024, 5, 1, tzinfo=UTC)]


def sent(message: Any) -> Any:
    """Return a message as it arrives on the other side."""
    return type(message).model_validate_json(message.model_dump_json())


def request_input(data: Any, datatype: str = "FP32", shape: list[int] | None = None, **parameters: Any) -> RequestInput:
    return RequestInput(
        name="x",
        shape=[len(data)] if shape is None else shape,
        datatype=datatype,
        data=data,
        parameters=Parameters(**parameters) if parameters else None,
    )


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (StringCodec, ["", "täst", "two"]),
        (Base64Codec, [b"", b"\x00\xff", b"two"]),
        (DatetimeCodec, TIMES),
        (NumpyCodec, np.array([[1.5, 2.5]], dtype=np.float32)),
    ],
)
@pytest.mark.parametrize("use_bytes", [True, False])
def test_a_value_comes_back_from_an_input_and_from_an_output(codec: Any, value: Any, use_bytes: bool) -> None:
    output = sent(codec.encode_output("x", value, use_bytes=use_bytes))
    assert output.parameters.content_type == codec.ContentType
    np.testing.assert_array_equal(codec.decode_output(output), value)
    np.testing.assert_array_equal(codec.decode_input(sent(codec.encode_input("x", value, use_bytes=use_bytes))), value)


@given(st.lists(st.text()), st.booleans())
def test_any_text_comes_back(texts: list[str], use_bytes: bool) -> None:
    output = StringCodec.encode_output("x", texts, use_bytes)
    assert output.shape == [len(texts), 1]
    assert {type(element) for element in output.data} <= {bytes if use_bytes else str}
    assert StringCodec.decode_output(output) == texts


@given(st.lists(st.binary()))
def test_any_bytes_come_back(values: list[bytes]) -> None:
    assert Base64Codec.decode_output(sent(Base64Codec.encode_output("x", values))) == values


@given(
    st_numpy.arrays(
        st.sampled_from(
            ["bool", "uint8", "uint16", "uint64", "int8", "int32", "int64", "float16", "float32", "float64"]
        ),
        st_numpy.array_shapes(max_dims=3, max_side=4),
        elements={"allow_infinity": False},
    )
)
def test_any_array_comes_back(array: Any) -> None:
    encoded = sent(NumpyCodec.encode_output("x", array))
    decoded = NumpyCodec.decode_output(encoded)
    assert decoded.dtype == array.dtype
    np.testing.assert_array_equal(decoded, array.reshape(-1, 1) if array.ndim == 1 else array)


@pytest.mark.parametrize("array", [np.array(["a", "bé"]), np.array([["a"], ["b"]])])
def test_arrays_of_text_are_sent_element_by_element(array: Any) -> None:
    encoded = sent(NumpyCodec.encode_output("x", array))
    assert encoded.datatype == "BYTES"
    np.testing.assert_array_equal(NumpyCodec.decode_output(encoded).ravel(), array.ravel())


def test_an_array_of_bytes_is_one_buffer() -> None:
    array = np.array([[b"a", b"b"]])
    output = NumpyCodec.encode_output("x", array)
    assert list(output.data) == [b"ab"]
    with pytest.raises(CodecError, match="'x' is no array of BYTES"):
        NumpyCodec.decode_output(output)  # as in MLServer: the last dimension is taken for the length of an element


def test_null_is_nan_and_nan_is_null() -> None:
    array = NumpyCodec.decode_input(request_input([1, None]))
    np.testing.assert_array_equal(array, np.array([1, np.nan], dtype=np.float32))
    output = NumpyCodec.encode_output("x", array)
    assert '"data":[1.0,null]' in output.model_dump_json()


@pytest.mark.parametrize(
    ("codec", "given", "message"),
    [
        (NumpyCodec, request_input([1, 2], shape=[3]), "'x' is no array of FP32 with the shape [3]"),
        (NumpyCodec, request_input(["a"], "INT64"), "'x' is no array of INT64"),
        (NumpyCodec, request_input([None], "INT64"), "'x' is no array of INT64"),
        (DatetimeCodec, request_input(["noon"], "BYTES"), "'x' is no date and time"),
        (DatetimeCodec, request_input([5], "BYTES"), "'x' is no date and time"),
        (StringCodec, request_input([b"\xff"], "BYTES"), "'x' is not UTF-8"),
    ],
)
def test_what_a_codec_cannot_read_is_the_clients_mistake(codec: Any, given: RequestInput, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec.decode_input(given)
    assert message in str(caught.value)
    assert caught.value.status_code == 400


def test_what_a_codec_cannot_write_says_so() -> None:
    with pytest.raises(CodecError, match="no datatype for arrays of complex128"):
        NumpyCodec.encode_output("x", np.array([1j]))


def test_invalid_base64_is_taken_for_the_bytes_themselves() -> None:
    assert Base64Codec.decode_input(request_input(["no base64!"], "BYTES")) == [b"no base64!"]


@pytest.mark.parametrize("use_bytes", [True, False])
def test_a_data_frame_comes_back(use_bytes: bool) -> None:
    frame = pd.DataFrame(
        {
            "number": [1.5, None],
            "whole": [1, 2],
            "text": pd.Series(["a", "b"], dtype=object),
            "mixed": pd.Series([{"a": 1}, [1, 2]], dtype=object),
        }
    )
    request = sent(PandasCodec.encode_request(frame, use_bytes=use_bytes))
    assert request.parameters.content_type == "pd"
    types = {each.name: each.parameters.content_type if each.parameters else None for each in request.inputs}
    assert types == {"number": None, "whole": None, "text": "str", "mixed": "pd_json"}
    assert [each.shape for each in request.inputs] == [[2, 1]] * 4
    pd.testing.assert_frame_equal(decode_inference_request(request), frame)
    response = sent(PandasCodec.encode_response("m", frame, "v1"))
    assert (response.model_name, response.model_version) == ("m", "v1")
    assert PandasCodec.decode_response(response)["whole"].tolist() == [1, 2]


def test_columns_are_decoded_by_their_own_content_types_first() -> None:
    inputs = [
        RequestInput(
            name="a", shape=[1], datatype="BYTES", data=["aGk="], parameters=Parameters(content_type="base64")
        ),
        RequestInput(name="b", shape=[1], datatype="INT32", data=[3], parameters=Parameters(content_type="np")),
    ]
    frame = decode_inference_request(InferenceRequest(inputs=inputs, parameters=Parameters(content_type="pd")))
    assert frame.to_dict("list") == {"a": [b"hi"], "b": [3]}
    assert frame["b"].dtype == np.int32


def test_columns_that_are_not_what_they_say_are_no_data_frame() -> None:
    inputs = [RequestInput(name="a", shape=[1], datatype="INT32", data=["one"])]
    with pytest.raises(CodecError, match="the tensors make no data frame"):
        PandasCodec.decode_request(InferenceRequest(inputs=inputs))


@pytest.mark.parametrize(("codec", "value"), [(NumpyRequestCodec, np.ones((2, 2))), (StringRequestCodec, ["a"])])
def test_a_request_codec_for_one_tensor(codec: Any, value: Any) -> None:
    request, response = sent(codec.encode_request(value)), sent(codec.encode_response("m", value))
    assert (request.inputs[0].name, response.outputs[0].name) == ("input-1", "output-1")
    np.testing.assert_array_equal(codec.decode_request(request), value)
    np.testing.assert_array_equal(codec.decode_response(response), value)
    request.inputs.append(request.inputs[0])
    with pytest.raises(CodecError, match=r"only supports a single input tensor \(2 were received\)"):
        codec.decode_request(request)
    response.outputs.clear()
    with pytest.raises(CodecError, match=r"only supports a single output tensor \(0 were received\)"):
        codec.decode_response(response)


class Model(MLModel):
    pass


def model(**settings: Any) -> MLModel:
    return Model(ModelSettings(implementation=Model, name="m", **settings))


def test_which_codec_decodes_an_input() -> None:
    described = {"name": "x", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "base64"}}
    data: Any = ["aGk="]
    plain, with_metadata = model(), model(inputs=[described])
    undecided = request_input(data, "BYTES")
    assert plain.decode(undecided) is undecided.data
    assert plain.decode(request_input(data, "BYTES"), default_codec=StringCodec) == ["aGk="]
    assert with_metadata.decode(request_input(data, "BYTES"), default_codec=StringCodec) == [b"hi"]
    assert with_metadata.decode(request_input(data, "BYTES", content_type="str")) == ["aGk="]
    unknown = request_input(data, "BYTES", content_type="mine")
    assert with_metadata.decode(unknown) is unknown.data
    later = model()
    later.inputs = with_metadata.inputs or []
    assert later.decode(request_input(data, "BYTES")) == [b"hi"]


def test_which_codec_decodes_a_request() -> None:
    def request(**parameters: Any) -> InferenceRequest:
        return InferenceRequest(
            inputs=[request_input([1, 2])], parameters=Parameters(**parameters) if parameters else None
        )

    undecided = request()
    assert model().decode_request(undecided) is undecided
    assert model().decode_request(request(), default_codec=NumpyRequestCodec).tolist() == [1, 2]
    assert isinstance(model(parameters={"content_type": "pd"}).decode_request(request()), pd.DataFrame)
    given = request(content_type="np")
    assert isinstance(model(parameters={"content_type": "pd"}).decode_request(given), np.ndarray)
    assert has_decoded(given)
    assert get_decoded_or_raw(given) is get_decoded(given)
    assert "_decoded" not in given.model_dump_json()


def test_which_codec_encodes_an_output() -> None:
    described = {"name": "out", "datatype": "BYTES", "shape": [-1], "parameters": {"content_type": "base64"}}
    out = RequestOutput(name="out")
    assert model().encode(["a"], out).parameters.content_type == "str"  # type: ignore[union-attr]
    assert model().encode(np.ones(2), out).parameters.content_type == "np"  # type: ignore[union-attr]
    assert model(outputs=[described]).encode([b"a"], out).data.root == [b"YQ=="]
    wanted = RequestOutput(name="out", parameters=Parameters(content_type="datetime"))
    assert model(outputs=[described]).encode(TIMES, wanted).parameters.content_type == "datetime"  # type: ignore[union-attr]
    assert model().encode({1, 2}, out, default_codec=Anything).data.root == ["{1, 2}"]
    with pytest.raises(MLServerError, match="Codec not found for output field with name 'out'"):
        model().encode({1, 2}, out)


def test_which_codec_encodes_a_response() -> None:
    response = model(parameters={"version": "v1"}).encode_response(pd.DataFrame({"a": [1]}))
    assert (response.model_name, response.model_version, response.outputs[0].name) == ("m", "v1", "a")
    assert model().encode_response(["a"]).outputs[0].name == "output-1"
    assert model().encode_response({1}, default_codec=Everything).model_name == "everything"
    with pytest.raises(MLServerError, match="Codec not found for output response with type <class 'set'>"):
        model().encode_response({1})


class Anything(InputCodec):
    ContentType = "anything"

    @classmethod
    def encode_output(cls, name: str, payload: Any, **kwargs: Any) -> ResponseOutput:
        return ResponseOutput(name=name, shape=[1], datatype="BYTES", data=[str(payload)])


class Everything(RequestCodec):
    ContentType = "everything"

    @classmethod
    def encode_response(
        cls, model_name: str, payload: Any, model_version: str | None = None, **kwargs: Any
    ) -> InferenceResponse:
        return InferenceResponse(model_name="everything", outputs=[])


class Point:
    def __init__(self, x: float, y: float) -> None:
        self.x, self.y = x, y


@register_input_codec
class PointCodec(InputCodec):
    ContentType = "point"
    TypeHint = Point

    @classmethod
    def can_encode(cls, payload: Any) -> bool:
        return isinstance(payload, Point)

    @classmethod
    def encode_output(cls, name: str, payload: Point, **kwargs: Any) -> ResponseOutput:
        return ResponseOutput(name=name, shape=[2], datatype="FP64", data=[payload.x, payload.y])

    @classmethod
    def decode_input(cls, request_input: RequestInput) -> Point:
        return Point(*request_input.data)


@register_request_codec
class AllCodec(RequestCodec):
    ContentType = "all"

    @classmethod
    def decode_request(cls, request: InferenceRequest) -> list[str]:
        return [each.name for each in request.inputs]


def test_codecs_of_ones_own() -> None:
    assert find_input_codec("point") is PointCodec
    assert find_input_codec(type_hint=Point) is PointCodec
    assert find_request_codec("all") is AllCodec
    point = model().decode(request_input([1, 2], content_type="point"))
    assert (point.x, point.y) == (1, 2)
    assert model().encode(Point(3, 4), RequestOutput(name="p")).data.root == [3, 4]
    given = InferenceRequest(inputs=[request_input([1])], parameters=Parameters(content_type="all"))
    assert model().decode_request(given) == ["x"]


@pytest.mark.parametrize(
    ("hint", "content_type"),
    [
        (np.ndarray, "np"),
        (list[str], "str"),
        (List[str], "str"),  # noqa: UP006
        (List[bytes], "base64"),  # noqa: UP006
        (list[datetime], "datetime"),
        (int, None),
    ],
)
def test_codecs_are_found_by_type_hint(hint: Any, content_type: str | None) -> None:
    codec = find_input_codec(type_hint=hint)
    assert (codec.ContentType if codec else None) == content_type


class Arguments(MLModel):
    @decode_args
    async def predict(  # type: ignore[override]
        self,
        array: np.ndarray,
        texts: list[str] | None,
        times: list[datetime] | None = None,
    ) -> tuple[np.ndarray, list[str]]:
        return array * 2, [*(texts or []), *(str(each.year) for each in times or [])]


class Frames(MLModel):
    @decode_args
    def predict(self, whole: pd.DataFrame, factor: np.ndarray) -> pd.DataFrame:  # type: ignore[override]
        return whole * factor.item()


async def test_arguments_by_the_signature_of_predict() -> None:
    served = Arguments(ModelSettings(implementation=Arguments, name="m", parameters={"version": "2"}))
    array = RequestInput(name="array", shape=[2], datatype="INT32", data=[1, 2])
    texts = RequestInput(name="texts", shape=[1], datatype="BYTES", data=["a"])
    times = RequestInput(name="times", shape=[1], datatype="BYTES", data=["2024-01-01"])
    response = await served.predict(InferenceRequest(inputs=[texts, times, array]))
    assert [output.name for output in response.outputs] == ["output-0", "output-1"]
    assert [list(output.data) for output in response.outputs] == [[2, 4], [b"a", b"2024"]]
    assert (response.model_name, response.model_version) == ("m", "2")
    assert len((await served.predict(InferenceRequest(inputs=[array]))).outputs) == 2


async def test_a_request_that_does_not_fit_the_signature_is_refused() -> None:
    served = Arguments(ModelSettings(implementation=Arguments, name="m"))
    other = RequestInput(name="other", shape=[1], datatype="INT32", data=[1])
    with pytest.raises(
        MLServerError, match=r"Input 'other' was not found. Available inputs are 'array', 'texts', 'times'"
    ):
        await served.predict(InferenceRequest(inputs=[other]))
    with pytest.raises(MLServerError, match="The request lacks the input 'array'"):
        await served.predict(InferenceRequest(inputs=[]))


async def test_inputs_without_a_parameter_go_to_the_data_frame() -> None:
    served = Frames(ModelSettings(implementation=Frames, name="m"))
    inputs = [RequestInput(name=name, shape=[1], datatype="INT64", data=[3]) for name in ("a", "factor", "b")]
    response = await served.predict(InferenceRequest(inputs=inputs))
    assert {output.name: list(output.data) for output in response.outputs} == {"a": [9], "b": [9]}
    with pytest.raises(MLServerError, match="Codec not found for input field with name 'whole'"):
        await served.predict(
            InferenceRequest(inputs=[RequestInput(name="whole", shape=[1], datatype="INT64", data=[3])])
        )


async def test_results_must_be_what_the_signature_says() -> None:
    class Wrong(MLModel):
        @decode_args
        async def predict(self, x: np.ndarray) -> list[str]:  # type: ignore[override]
            return x  # type: ignore[return-value]

    served = Wrong(ModelSettings(implementation=Wrong, name="m"))
    with pytest.raises(MLServerError, match="Unexpected output value at position '0'"):
        await served.predict(InferenceRequest(inputs=[request_input([1])]))


def test_a_type_hint_without_a_codec_is_refused_at_once() -> None:
    with pytest.raises(MLServerError, match="Codec not found for input field with name 'x' and type <class 'int'>"):

        @decode_args
        async def predict(self, x: int) -> None: ...  # type: ignore[no-untyped-def]


def test_data_that_are_an_array_become_a_list_when_they_are_read() -> None:
    array = np.array([[1.5, np.nan]])
    data = TensorData.of_array(array)
    assert data.array is not None and np.shares_memory(data.array, array)
    assert list(data) == [1.5, None]
    assert data[0] == 1.5
    assert len(data) == 2
    assert data.array is None  # the list may be changed from now on
    data.root.append(7)
    assert data.model_dump() == [1.5, None, 7]


def test_neither_numpy_nor_pandas_is_imported_for_text() -> None:
    code = (
        "import sys, ts.mlserver.stand_in as s; s.provide()\n"
        "from mlserver import MLModel\n"
        "from mlserver.codecs import StringCodec, decode_args\n"
        "class M(MLModel):\n"
        "    @decode_args\n"
        "    async def predict(self, x: list[str]) -> list[str]: return x\n"
        "assert not {'numpy', 'pandas', 'torch'} & set(sys.modules), sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(BACKEND)}, check=True)
