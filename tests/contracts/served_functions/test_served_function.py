"""Functions and classes decorated with `ts.serve`: what they take from a request, and what becomes of their results."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel, Field

from ts import serve
from ts.context import Context, RequestProcessor
from ts.contracts.served_functions.call_values import CallValues
from ts.contracts.served_functions.invalid_values import InvalidValue
from ts.contracts.served_functions.served_function import DEVELOPMENT_VARIABLE, ServedFunction
from ts.jobs.errors import JobsCancelled, LoadError, PredictionException, RowFailure
from ts.sequence import SequenceCache
from ts.serve_decorator import ServeOptions


@dataclass
class Box:
    width: float
    height: float = 1.0


@dataclass
class Count:
    steps: int = 0


class Question(BaseModel):
    text: str = Field(min_length=2)


def row(**values: Any) -> dict[str, Any]:
    return values


def body(value: Any) -> dict[str, Any]:
    return row(body=value)


class Call:
    """One call of a decorated function by the worker; ``answers`` is what each row got, parts and errors first."""

    def __init__(self, function: Any, options: ServeOptions = ServeOptions(), gpu: int | None = None) -> None:  # noqa: B008
        self.context = Context("model", "/model", None, 8, gpu, "1.0")
        self.context.cache_settings = {"capacity": 10, "store": "memory"}
        SequenceCache(self.context)
        self.handler = ServedFunction(function, options)
        self.outcome = self.handler.initialize(self.context)
        self.sent: list[tuple[int, Any]] = []
        self.details: Any = None
        self.headers: dict[str, str] = {}

    def __call__(self, *rows: dict[str, Any], sequences: tuple[str, ...] = ()) -> list[Any]:
        names = [*sequences, *[""] * (len(rows) - len(sequences))]
        self.context.request_ids = {index: str(index) for index in range(len(rows))}
        self.context.request_processor = [
            RequestProcessor({"ts_request_sequence_id": name, **self.headers}) for name in names
        ]
        self.context.send_part = self._send
        results = self.handler.entry_point(list(rows), self.context)
        return asyncio.run(results) if asyncio.iscoroutine(results) else results

    def _send(self, ret: Any, req_id_map: Any, message: str, code: int, kind: str = "", details: Any = None) -> None:
        self.details = details
        for index in req_id_map:
            self.sent.append((index, ret[index] if code == 200 else (code, message)))
        if code != 200:
            raise JobsCancelled("every row has ended")


@pytest.mark.parametrize(
    ("function", "given", "result"),
    [
        (lambda text: text, row(body="hello"), "hello"),
        (lambda text: text, row(body=b'{"a": [1]}'), {"a": [1]}),
    ],
)
def test_what_has_no_annotation_is_what_the_request_says(function: Any, given: dict[str, Any], result: Any) -> None:
    assert Call(function)(given) == [result]


def test_the_annotation_of_the_only_parameter_says_what_the_body_is() -> None:
    def text(value: str) -> str:
        return value.upper()

    def raw(value: bytes) -> bytes:
        return value[::-1]

    def number(value: int) -> int:
        return value + 1

    def box(value: Box) -> dict[str, float]:
        return {"area": value.width * value.height}

    def question(value: Question | None = None) -> list[str]:
        return [] if value is None else [value.text]

    assert Call(text)(row(body="hello")) == Call(text)(row(body=bytearray(b"hello"))) == ["HELLO"]
    assert Call(raw)(row(body=bytearray(b"\xff\x00"))) == [b"\x00\xff"]
    assert Call(number)(row(body=1)) == Call(number)(row(body="1")) == Call(number)(row(value=np.array([1]))) == [2]
    assert Call(box)(row(body={"width": 3})) == Call(box)(row(body='{"width": 3}')) == [{"area": 3.0}]
    assert Call(question)(row(body=b"")) == Call(question)({}) == [[]]
    assert Call(question)(row(body={"text": "why"})) == [["why"]]


def test_several_parameters_come_from_an_object_a_form_or_tensors() -> None:
    def add(a: int, b: float = 0.5) -> float:
        return a + b

    call = Call(add)
    assert call(row(body={"a": 1, "b": 2})) == [3.0]
    assert call(row(body={"a": 1})) == [1.5]
    assert call(row(a=bytearray(b"1"), b="2.5")) == [3.5]
    assert call(row(a=np.array([[1]]), b=np.array([2.0]))) == [3.0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (row(body={"b": 1}), "a: Field required"),
        (row(body={"a": "x"}), "a: Input should be a valid integer, unable to parse string as an integer, given 'x'"),
        (row(body=[1]), "the body is to be a JSON object with the members a, b, given '[1]'"),
        (row(body=None), "the body is to be a JSON object with the members a, b, and is empty"),
        (
            row(body=b'{"a": '),
            "the body is to be a JSON object with the members a, b, and is not JSON: Expecting value",
        ),
        (
            row(body=b"[" * 100_000),
            "the body is to be a JSON object with the members a, b, and is not JSON: maximum recursion depth exceeded",
        ),
        (row(a=b"[" * 100_000), "a: Input should be a valid integer"),
        (
            row(**{'{"a": 1}': ""}),
            "the request has '{\"a\": 1}' in place of a, b; a body that is no form needs the header"
            " content-type: application/json",
        ),
        (row(a=b"\xff"), "a: Input should be a valid integer"),
        (row(amount=b"1"), "unknown field amount; the fields are: a, b"),
        (
            row(**{"\ufffdPNG\r\n\x1a": b"", "x": b"y"}),
            "the request is no form; a body that is no form needs the header",
        ),
        (
            row(a="\x00\ufffd\x01"),
            "a: Input should be a valid integer, unable to parse string as an integer, given 3 char",
        ),
    ],
)
def test_a_request_that_does_not_fit_is_refused_with_the_name_of_the_value(given: dict[str, Any], told: str) -> None:
    def add(a: int, b: float = 0.5) -> float:
        return a + b

    with pytest.raises(InvalidValue) as refused:
        CallValues(add, batched=False).read(given)
    assert str(refused.value).startswith(told)
    call = Call(add)
    assert call(given) == [b""]
    assert [(index, code) for index, (code, _) in call.sent] == [(0, 400)]


@pytest.mark.parametrize(
    ("annotation", "result", "told"),
    [
        (str, "a", ""),
        (str | None, "a", ""),
        (Any, 5, ""),
        (float, 1, ""),
        (list[float], np.array([1, 2.5]), ""),
        (Box, Box(width=1), ""),
        (tuple[int, int], (1, 2), ""),
        (np.ndarray, [1], ""),
        (str, 5, "Input should be a valid string, given '5'"),
        (int, "5", "Input should be a valid integer"),
        (dict[str, float], {"a": "x"}, "a: Input should be a valid number, given 'x'"),
        (bytes, "text", "Input should be a valid bytes"),
        (int, object(), ""),
    ],
)
def test_how_a_result_differs_from_its_annotation(annotation: Any, result: Any, told: str) -> None:
    def function(x: int) -> Any:
        return result

    function.__annotations__["return"] = annotation
    assert told in CallValues(function, batched=False).misfit(result)
    assert bool(told) == bool(CallValues(function, batched=False).misfit(result))


def test_a_result_that_does_not_fit_is_told_once_in_development(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def half(x: float) -> float:
        return f"{x / 2}"  # type: ignore[return-value]

    call = Call(half)
    assert call(row(body=3)) == ["1.5"]
    assert not caplog.records
    monkeypatch.setenv(DEVELOPMENT_VARIABLE, "1")
    assert call(row(body=3), row(body=4)) == ["1.5", "2.0"]
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "A result of half does not fit its annotation: Input should be a valid number"
    )


def test_a_misspelt_member_is_told_even_if_the_parameter_has_a_default() -> None:
    def find(text: str, threshold: float = 0.5, limit: int = 10) -> list[float]:
        return [threshold, limit]

    values = CallValues(find, batched=False)
    for given in ({"text": "a", "treshold": 1}, {"text": "a", "threshold_": 1}, {"txet": "a", "treshold": 1}):
        with pytest.raises(InvalidValue, match=r"unknown member \w+; did you mean (threshold|text)\?"):
            values.read(row(body=given))
    # What is like no parameter, or only like one that is there, is for others; so are very many members.
    others = {"text": "a", "threshold": 1, "thresholds": 2, "model": "m", "height": 3}
    assert values.read(row(body=others)) == {"text": "a", "threshold": 1, "limit": 10}
    many = {"text": "a"} | {f"{number}" * 50: 1 for number in range(10_000)}
    assert values.read(row(body=many))["text"] == "a"


def test_a_misspelt_field_of_a_form_is_told_with_the_one_that_was_meant() -> None:
    def turn(image: bytes, degrees: int = 90) -> int:
        return len(image) + degrees

    def size(image: bytes) -> int:
        return len(image)

    told = (400, "unknown field img; did you mean image?")
    for function, given in (
        (turn, row(img=bytearray(b"\x89PNG"))),
        (turn, row(img=bytearray(b"\x89PNG"), degrees="45")),
        (size, row(img=bytearray(b"\x89PNG"))),
    ):
        call = Call(function)
        call(given)
        assert call.sent == [(0, told)]
    call = Call(turn)
    call(row(image=bytearray(b"\x89PNG"), degree="45"))
    assert call.sent == [(0, (400, "unknown field degree; did you mean degrees?"))]
    assert Call(turn)(row(image=bytearray(b"\x89PNG"), comment="45")) == [94]


def test_every_problem_of_a_request_is_listed_in_pydantics_terms() -> None:
    def draw(boxes: list[Box], unit: str = "m") -> int:
        return len(boxes)

    call = Call(draw)
    call(row(body={"boxes": [{"width": "wide"}, {"height": 2}, {"width": {"deep": [b"\xff"]}}], "unit": ["m"] * 99}))
    assert call.details == [
        {
            "type": "float_parsing",
            "loc": ["boxes", 0, "width"],
            "msg": "Input should be a valid number, unable to parse string as a number",
            "input": "wide",
        },
        {"type": "missing", "loc": ["boxes", 1, "width"], "msg": "Field required"},
        {"type": "float_type", "loc": ["boxes", 2, "width"], "msg": "Input should be a valid number"},
        {"type": "string_type", "loc": ["unit"], "msg": "Input should be a valid string"},
    ]
    call(row(body={"boxes": [{"width": "w" * 99}] * 25}))
    assert len(call.details) == 20
    assert call.details[0]["input"] == "w" * 60
    ((_, (_, message)),) = call.sent[1:]
    assert message.endswith("; and 5 more, 25 problems in all")
    call(row(body=b"{"))
    assert [(each["type"], each["loc"]) for each in call.details] == [("value_error", [])]


def test_a_batch_is_one_call_without_the_rows_that_do_not_fit() -> None:
    calls = []

    def double(value: list[int]) -> list[int]:
        calls.append(value)
        return [2 * each for each in value]

    call = Call(double, ServeOptions(batch_size=8))
    assert call(row(body=1), row(body="x"), row(body=3)) == [2, b"", 6]
    assert calls == [[1, 3]]
    assert [index for index, _ in call.sent] == [1]


def test_a_default_of_a_batch_is_a_value_or_a_list_of_it_as_type_checkers_want() -> None:
    def say(text: list[str], unit: list[str] = ["m2"], sizes: list[list[int]] = [[1]]) -> list[Any]:  # noqa: B006
        return [f"{unit} {sizes}" for unit, sizes in zip(unit, sizes, strict=True)]

    for defaults in ((["m2"], [[1]]), ("m2", [1])):
        say.__defaults__ = defaults
        assert Call(say, ServeOptions(batch_size=8))(row(text="a"), row(text="b", unit="a")) == ["m2 [1]", "a [1]"]


def test_an_exception_among_the_results_of_a_batch_fails_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def inverse(value: list[int]) -> list[Any]:
        bad = {0: PredictionException("zero has no inverse", 422), -1: ValueError("no debts"), -2: object()}
        return [bad.get(each, each and 1 / each) for each in value]

    call = Call(inverse, ServeOptions(batch_size=8))
    assert call(*map(body, (2, 0, -1, -2, 4)))[::4] == [0.5, 0.25]
    told = [failed_with(call, index) for index in range(5)]
    failed = (503, "Prediction failed")
    assert told == [None, (422, "zero has no inverse"), failed, failed, None]
    monkeypatch.setenv(DEVELOPMENT_VARIABLE, "true")
    call(body(-1), body(1))
    assert failed_with(call, 0) == (500, "ValueError: no debts")


def test_an_exception_that_cannot_be_told_is_answered_in_development(monkeypatch: pytest.MonkeyPatch) -> None:
    class UntellableError(Exception):
        def __str__(self) -> str:
            raise AttributeError("absent")

    def fail(value: int) -> int:
        raise UntellableError

    monkeypatch.setenv(DEVELOPMENT_VARIABLE, "true")
    with pytest.raises(RowFailure, match="UntellableError: UntellableError"):
        Call(fail)(row(body=1))


def failed_with(call: Any, index: int) -> tuple[int, str] | None:
    error = call.context.request_processor[index].error
    return None if error is None else (error.status, error.message)


def test_a_call_that_raises_fails_its_own_request_among_several() -> None:
    def inverse(value: int) -> float:
        if value < 0:
            raise PredictionException("no debts", 422)
        return 1 / value

    call = Call(inverse, ServeOptions())
    assert call(*map(body, (2, 0, -1, 4)))[::3] == [0.5, 0.25]
    told = [failed_with(call, index) for index in range(4)]
    assert told == [None, (503, "Prediction failed"), (422, "no debts"), None]
    with pytest.raises(ZeroDivisionError):
        call(body(0))


@pytest.mark.parametrize(("code", "status"), [(413, 507), (200, 500), (1000, 500), ("many", 500)])
def test_an_exception_with_a_code_that_is_no_error_fails_its_own_row_too(code: Any, status: int) -> None:
    call = Call(lambda value: [PredictionException("no", code), 2], ServeOptions(batch_size=8))
    assert call(body(1), body(2))[1] == 2
    assert failed_with(call, 0) == (status, "no")


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA out of memory"), MemoryError()])
@pytest.mark.parametrize("how", ["returned", "raised when a result is written"])
def test_a_device_that_fails_is_not_the_failure_of_one_row(error: Exception, how: str) -> None:
    class OnTheDevice:
        def tolist(self) -> Any:
            raise error

    bad = error if how == "returned" else OnTheDevice()
    with pytest.raises(type(error)):
        Call(lambda value: [1, bad], ServeOptions(batch_size=8))(body(1), body(2))


@pytest.mark.parametrize(
    "given", [np.array([[1.5, 2.5]], np.float32), torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)]
)
def test_who_accepts_a_file_gets_an_array_as_one(given: Any) -> None:
    call = Call(lambda what: given)
    call.headers = {"Accept": "application/x-npy"}
    ((written,), (processor,)) = call(body("x")), call.context.request_processor
    back = np.load(io.BytesIO(written), allow_pickle=False)
    assert (back.dtype, back.tolist()) == (np.float32, [[1.5, 2.5]])
    assert processor.get_response_header("content-type") == "application/x-npy"


def test_numbers_that_json_does_not_have_are_null() -> None:
    def give(what: str) -> Any:
        return {"value": float("nan"), "array": np.array([1.0, np.inf])}

    assert Call(give)(row(body="x")) == [{"value": None, "array": [1.0, None]}]


@pytest.mark.parametrize("result", [[1], 1, (1, 2)])
def test_a_batch_needs_a_result_for_each_row(result: Any) -> None:
    def wrong(value: list[int]) -> Any:
        return result

    with pytest.raises(ValueError, match="for 2 requests; return a list with one for each"):
        Call(wrong, ServeOptions(batch_size=8))(row(body=1), row(body=2))


def test_results_are_text_bytes_or_json() -> None:
    def give(what: str) -> Any:
        known = {"box": Box(1), "question": Question(text="why"), "array": np.array([[1, 2]]), "nothing": None}
        return known.get(what, what)

    call = Call(give)
    for what, result, media_type in (
        ("text", "text", "text/plain"),
        ("box", {"width": 1, "height": 1.0}, "application/json"),
        ("question", {"text": "why"}, "application/json"),
        ("array", [[1, 2]], "application/json"),
        ("nothing", None, "application/json"),
    ):
        assert call(row(body=what)) == [result]
        assert call.context.get_response_content_type(0) == media_type


@dataclass
class Holder:
    """A value that holds others."""

    held: Any


@pytest.mark.parametrize(
    ("result", "answered"),
    [
        ({"\ud800": "\udfff"}, {"\ud800": "\udfff"}),
        ([{1: {"\ud800": np.array([1, np.inf])}}], [{"1": {"\ud800": [1.0, None]}}]),
        (
            {"\ud800": (Box(1), Holder({"\ud801": {2}}))},
            {"\ud800": [{"width": 1, "height": 1.0}, {"held": {"\ud801": [2]}}]},
        ),
    ],
)
def test_half_of_a_surrogate_pair_may_be_in_a_key_as_in_a_value(result: Any, answered: Any) -> None:
    assert Call(lambda text: result)(row(body="x")) == [answered]


def test_a_result_that_is_no_json_names_its_type() -> None:
    with pytest.raises(ValueError, match="a value of type object"):
        Call(lambda text: [object()])(row(body=""))


def test_a_generator_streams_and_its_last_part_is_empty() -> None:
    def texts(count: int) -> Iterator[str]:
        yield from map(str, range(count))

    async def objects(count: int) -> AsyncIterator[dict[str, int]]:
        for value in range(count):
            await asyncio.sleep(0)
            yield {"value": value}

    call = Call(texts)
    assert call(row(body=2)) == [b""]
    assert call.sent == [(0, "0"), (0, "1")]
    call = Call(objects)
    assert call(row(body=2)) == [b""]
    assert call.sent == [(0, '{"value": 0}\n'), (0, '{"value": 1}\n')]
    assert call.context.get_response_content_type(0) == "application/x-ndjson"


def test_state_is_made_for_each_sequence_and_kept() -> None:
    def said(text: list[str], state: list[dict]) -> list[list[str]]:  # type: ignore[type-arg]
        for each, own in zip(text, state, strict=True):
            own.setdefault("said", []).append(each)
        return [list(own["said"]) for own in state]

    def count(state: Count) -> int:
        state.steps += 1
        return state.steps

    call = Call(said, ServeOptions(batch_size=8))
    assert call(row(body="a"), row(body="b"), sequences=("one", "two")) == [["a"], ["b"]]
    assert call(row(body="c"), sequences=("one",)) == [["a", "c"]]
    call = Call(count)
    assert [call({}, sequences=(name,)) for name in ("one", "one", "two")] == [[1], [2], [1]]


class Diary:
    def predict(self, text: list[str], state: list[list], log: list[Any]) -> list[int]:  # type: ignore[type-arg]
        for each, own, new in zip(text, state, log, strict=True):
            own.append(each)
            new.append(each)
        return [len(own) for own in state]

    def rebuild(self, states: list[list[str]], entries: list[list[str]]) -> list[list[str]]:
        return [state + appended for state, appended in zip(states, entries, strict=True)]


def test_a_class_that_rebuilds_states_appends_to_logs() -> None:
    call = Call(Diary, ServeOptions(batch_size=8))
    assert call.handler.rebuild is not None
    assert call.handler.rebuild([None, ["a"]], [["a"], ["b", "c"]]) == [["a"], ["a", "b", "c"]]
    assert "log" not in call.handler.declared["function"]["parameters"]


def test_a_log_is_a_value_of_the_request_where_nothing_is_rebuilt() -> None:
    class Lines:
        def predict(self, log: str) -> int:
            return len(log.splitlines())

    call = Call(Lines)
    assert call(row(body="one\ntwo")) == [2]
    assert call.handler.rebuild is None


def test_a_log_needs_the_state_that_it_makes() -> None:
    class Lines:
        def predict(self, text: str, log: Any) -> int:
            return 1

        def rebuild(self, states: list[Any], entries: list[list[Any]]) -> list[Any]:
            return states

    with pytest.raises(LoadError, match="has the parameter log without state"):
        Call(Lines)


def test_a_class_is_set_up_with_its_device() -> None:
    class Model:
        async def setup(self, device: str) -> None:
            self.device = device

        def predict(self) -> str:
            return self.device

    for gpu, device in ((None, "cpu"), (1, "cuda:1")):
        call = Call(Model, gpu=gpu)
        asyncio.run(call.outcome)
        assert call({}) == [device]


def test_what_it_takes_is_declared() -> None:
    def ask(question: Question, tries: int = 3) -> Iterator[Box]:
        yield Box(tries)

    declared = CallValues(ask, batched=False).declared
    assert declared["takes"] == "application/json"
    assert declared["request"]["required"] == ["question"]
    assert declared["request"]["$defs"]["Question"]["properties"]["text"]["minLength"] == 2
    assert declared["response"]["properties"]["width"]["type"] == "number"
    assert (declared["streams"], declared["stateful"]) == (True, False)


class NoPredict:
    """A class that is no model."""


def unknown(value: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has an annotation that means nothing."""


def single(value: int) -> int:
    return value


def out_of_reach(text: str, other: NoPredict) -> None:
    """Has a parameter that no request can have."""


def within_reach(text: str, sized: Sized, other: NoPredict = NoPredict()) -> int:  # noqa: B008
    """Has a class that texts are of, and one that may be left out."""
    return len(sized)


@pytest.mark.filterwarnings("ignore:Default value")  # the schema leaves it out
def test_a_class_that_requests_need_not_hold_is_accepted() -> None:
    assert Call(within_reach)(row(body={"text": "a", "sized": "abc"})) == [3]


@pytest.mark.parametrize(
    ("function", "options", "told"),
    [
        (lambda *values: values, ServeOptions(), "each parameter needs a name"),
        (NoPredict, ServeOptions(), "no method predict"),
        (unknown, ServeOptions(), "name 'Missing' is not defined"),
        (
            out_of_reach,
            ServeOptions(),
            "out_of_reach: other is to be a NoPredict, which no request can hold; annotate str",
        ),
        (single, ServeOptions(batch_size=2), "is to be a list, since batch_size was given"),
    ],
)
def test_a_function_that_no_request_can_call_does_not_load(
    function: Callable[..., Any], options: ServeOptions, told: str
) -> None:
    with pytest.raises(LoadError, match=told):
        ServedFunction(function, options)


def test_the_decorator_leaves_a_function_as_it_is() -> None:
    @serve
    def one(text: str) -> str:
        return text

    @serve(batch_size=2, max_batch_delay=5, store="file")
    def many(text: list[str]) -> list[str]:
        return text

    assert one("a") == "a"
    assert many(["a", "b"]) == ["a", "b"]
    with pytest.raises(TypeError, match="batches"):
        serve(batches=2)  # type: ignore[call-overload]


def test_an_object_with_the_one_name_is_accepted_as_well() -> None:
    def half(number: float) -> float:
        return number / 2

    assert Call(half)(row(body=3)) == [1.5]
    assert Call(half)(row(body={"number": 3})) == [1.5]
    assert Call(half)(row(body=bytearray(b'{"number": 3}'))) == [1.5]


def test_a_value_that_fits_is_not_taken_for_an_object_with_the_one_name() -> None:
    def echo(data: dict[str, Any]) -> Any:
        return data

    def shout(text: str) -> str:
        return text.upper()

    assert Call(echo)(row(body={"data": 1})) == [{"data": 1}]
    assert Call(shout)(row(body='{"text": "a"}')) == ['{"TEXT": "A"}']
    assert Call(shout)(row(body={"text": "a"})) == ["A"]


NOT_A_NUMBER = "Input should be a valid number, unable to parse string as a number"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"number": "x"}, f"number: {NOT_A_NUMBER}, given 'x'"),
        (b"\xff\xd8\xff", f"number: {NOT_A_NUMBER}, given 3 bytes that are not text"),
        ("[1, 2", "number: the body is not JSON: Expecting ',' delimiter: line 1 column 6 (char 5)"),
    ],
)
def test_what_is_told_of_a_wrong_body(body: Any, told: str) -> None:
    def half(number: float) -> float:
        return number / 2

    call = Call(half)
    call(row(body=body))
    assert call.sent == [(0, (400, told))]


def test_a_body_that_is_nested_too_deeply_is_the_clients_mistake() -> None:
    def first(values: list[float]) -> float:
        return values[0]

    call = Call(first)
    call(row(body="[" * 100_000))
    ((_, (status, told)),) = call.sent
    assert (status, told[:64]) == (400, "values: the body is not JSON: maximum recursion depth exceeded w")


def test_binary_bodies_are_not_repeated() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    call = Call(add)
    call(row(body=b"\xff\xd8\xff"))
    assert call.sent == [
        (0, (400, "the body is to be a JSON object with the members a, b, given 3 bytes that are not text"))
    ]


@pytest.mark.parametrize("development", [False, True])
def test_what_a_function_raises_is_told_in_development(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, development: bool
) -> None:
    def broken(number: int) -> float:
        return 1 / number

    if development:
        monkeypatch.setenv("TS_DEVELOPMENT", "1")
        with pytest.raises(RowFailure, match="ZeroDivisionError: division by zero") as told:
            Call(broken)(row(body=0))
        assert (told.value.status, len(caplog.records)) == (500, 1)
        assert "division by zero" in caplog.text
    else:
        with pytest.raises(ZeroDivisionError):
            Call(broken)(row(body=0))
