"""What a Truss answers to one request: the rows of the contract's table that a request and its answer say it all of.

The numbers are those of the table; `test_table` checks that every row has a test.
"""

import json
import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgpack
import pytest
from tests.conformance.truss import binary_form
from tests.conformance.truss.serving import CODE, Serving, Truss, is_error

GENERIC = "Internal Server Error (in model/chainlet)."
BINARY = {"content-type": "Application/Octet-Stream; charset=binary"}

FIRST_HELPER = """
import second_helper


def help_out(inputs):
    return second_helper.give_up(inputs)
"""
SECOND_HELPER = """
def give_up(inputs):
    raise ValueError("the second helper gives up")
"""

TRUSSES = {
    "echo": Truss("basics:Echo"),
    "steps": Truss("basics:Steps"),
    "async_steps": Truss("basics:AsyncSteps"),
    "answers": Truss("answers:Answers"),
    "failing_steps": Truss("answers:FailingSteps"),
    "traced": Truss(
        "answers:Traced",
        files={"packages/first_helper.py": FIRST_HELPER, "packages/second_helper.py": SECOND_HELPER},
    ),
    "logging": Truss("answers:Logging"),
    "collected": Truss("streams:Collected"),
    "all_three": Truss("requests:AllThree"),
    "postponed": Truss("postponed:Postponed"),
    "request_only": Truss("requests:RequestOnly"),
    "raw_preprocess": Truss("requests:RawPreprocess"),
    "aliases": Truss("requests:Aliases"),
    "typed": Truss("typed:Typed"),
    "two_fields": Truss("typed:TwoFields"),
    "streams": Truss("streams:Streams"),
}


@dataclass(frozen=True)
class Case:
    """A row, its request, and what the answer must be.

    Attributes:
        row: The number in the contract's table.
        truss: Whom to ask.
        inputs: What is sent as JSON, unless there is ``content``.
        result: The value in the answer's JSON.
        error: The value of its ``error``; a tuple has parts of it.
        code: The error code.
    """

    row: int
    truss: str
    inputs: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    endpoint: str | None = None
    status: int = 200
    result: Any = None
    error: Any = None
    code: int | None = None
    body: bytes | None = None
    answer_headers: dict[str, str | None] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"row-{self.row}-{self.truss}"

    def ask(self, serving: Serving) -> httpx.Response:
        """Send the request."""
        content = json.dumps(self.inputs).encode() if self.content is None else self.content
        path = f"/v1/models/{self.truss}" + (f"/{self.endpoint}" if self.endpoint else ":predict")
        return serving.client.post(path, content=content, headers=self.headers)


JSON = {"content-type": "application/json"}
PROMPT = {"prompt": "v"}

CASES = [
    Case(1, "echo", PROMPT, result=PROMPT, answer_headers=JSON),
    Case(2, "steps", [1, 2], result={"predictions": [4, 5]}),
    Case(3, "async_steps", {}, result={"preprocessed": True, "postprocessed": True}),
    Case(4, "echo", None, result=None),
    Case(31, "collected", [1, 2], result=[2, 4]),
    Case(32, "failing_steps", "stream", status=500, error=GENERIC, code=600),
    Case(33, "failing_steps", "response", status=500, error=GENERIC, code=600),
    Case(34, "failing_steps", "preprocess", status=500, error=GENERIC, code=600),
    Case(34, "failing_steps", "predict", status=500, error=GENERIC, code=600),
    Case(34, "failing_steps", "postprocess", status=500, error=GENERIC, code=600),
    Case(34, "answers", "value error", status=500, error=GENERIC, code=600),
    Case(35, "answers", "http 500", status=500, error="mine", code=600),
    Case(36, "answers", "http 422", status=422, error={"a": 1}, code=600, answer_headers={"x-mine": "yes"}),
    Case(37, "traced", 1, status=500, error=GENERIC, code=600),
    Case(38, "answers", "no content", status=204, body=b"", answer_headers={CODE: None}),
    Case(38, "answers", "response 500", status=500, body=b"down", code=700),
    Case(38, "answers", "created", status=201, body=b"made", answer_headers={CODE: None, "x-mine": "yes"}),
    Case(
        39,
        "answers",
        "events",
        body=b"data: one\n\ndata: two\n\n",
        answer_headers={"content-type": "text/event-stream; charset=utf-8"},
    ),
    Case(57, "all_three", {"test": 123}, result={"test": 123, "length": 13, "postprocessed": True}),
    Case(58, "request_only", content=b"not json", result={"body": "not json", "method": "POST", "path": ...}),
    Case(59, "raw_preprocess", content=b"\xff\x00garbage", headers=JSON, result=9),
    Case(60, "request_only", {"a": 1}, endpoint="chat/completions", result={"a": 1}),
    Case(61, "postponed", {}, result={"length": 2}),
    Case(63, "typed", {"prompt": "ab"}, result={"text": "abab"}),
    Case(63, "typed", {}, status=400, error="Input Parsing Error:\n  `prompt`: Field required.", code=700),
    Case(
        64,
        "two_fields",
        {"a": "x", "b": [1, "y"]},
        status=400,
        error=("Errors:", "\n  `a`: ", "\n  `b[1]`: "),
        code=700,
    ),
    Case(65, "echo", content=b"", status=400, error=("Invalid JSON payload: ",), code=700),
    Case(65, "echo", content=b"nope", status=400, error=("Invalid JSON payload: ",), code=700),
    Case(66, "echo", content=b"\xff", status=400, error=("Invalid JSON payload: ",), code=700),
    Case(66, "echo", content=b"[" * 100_000, status=400, error=("Invalid JSON payload: ",), code=700),
    Case(69, "aliases", 1, endpoint="chat/completions", status=404, error=("chat_completions",), code=700),
    Case(
        70,
        "answers",
        "numpy",
        result={"array": [[0, 1], [2, 3]], "integer": 3, "float": 0.5, "nested": [[[0, 1], [2, 3]]]},
    ),
    Case(73, "echo", content=b"\x82\xa1a", headers=BINARY, status=400, error=(), code=700),
    Case(
        73,
        "echo",
        content=binary_form.object_array(),
        headers=BINARY,
        status=400,
        error="unsupported payload",
        code=700,
    ),
    Case(
        74,
        "answers",
        "rich",
        result={
            "when": "2026-01-02T03:04:05Z",
            "flag": True,
            "model": {"number": 1},
            "nothing": None,
            "id": str(uuid.UUID(int=1)),
            "price": "1.50",
        },
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows(case: Case, serving: Serving) -> None:
    response = case.ask(serving)
    assert response.status_code == case.status, response.text
    for name, value in case.answer_headers.items():
        assert response.headers.get(name) == value
    if case.code is not None:
        assert response.headers[CODE] == str(case.code)
        assert response.headers["x-baseten-error-source"] == "04"
    if case.error is not None:
        _check_error(case.error, response.json()["error"])
    if case.body is not None:
        assert response.content == case.body
    elif case.error is None:
        _check_result(case.result, response.json())


def _check_error(expected: Any, told: Any) -> None:
    if not isinstance(expected, tuple):
        assert told == expected
        return
    assert all(part in told for part in expected), told
    assert "a secret detail" not in told


def _check_result(expected: Any, result: Any) -> None:
    if isinstance(expected, dict):
        expected = {key: result[key] if value is ... else value for key, value in expected.items()}
    assert result == expected


def test_row_34_the_exception_is_in_the_log(serving: Serving) -> None:
    start = len(serving.log())
    serving.predict("failing_steps", "predict")
    assert "ValueError" in serving.wait_for_log("a secret detail", start)


def test_row_32_the_log_names_the_ban(serving: Serving) -> None:
    start = len(serving.log())
    serving.predict("failing_steps", "stream")
    assert "postprocess" in serving.wait_for_log("stream", start)


def test_row_35_it_is_logged_as_an_http_exception(serving: Serving) -> None:
    start = len(serving.log())
    serving.predict("answers", "http 500")
    serving.wait_for_log("HTTPException", start)


def test_row_37_the_trace_begins_at_the_models_file(serving: Serving) -> None:
    start = len(serving.log())
    serving.predict("traced", 1)
    told = serving.wait_for_log("the second helper gives up", start)
    trace = told.rpartition("Traceback")[2]  # that of an earlier row may be written only now
    frames = [line for line in trace.splitlines() if "File " in line and ", line " in line]
    assert [frame.partition('File "')[2].partition('"')[0].rpartition("/")[2] for frame in frames] == [
        "model.py",
        "first_helper.py",
        "second_helper.py",
    ]


def test_row_63_in_the_binary_form(serving: Serving) -> None:
    response = serving.predict("typed", content=msgpack.packb({"prompt": "ab"}), headers=BINARY)
    assert (response.status_code, msgpack.unpackb(response.content)) == (200, {"text": "abab"})
    response = serving.predict("typed", content=msgpack.packb({}), headers=BINARY)
    assert is_error(response, 400, 700) == "Input Parsing Error:\n  `prompt`: Field required."


def test_row_69_each_alias_is_a_method_of_its_own(serving: Serving) -> None:
    for name in ("completions", "embeddings", "messages", "responses"):
        assert serving.call("aliases", name).json() == [name, 1]
        assert serving.call("aliases", f"v1/{name}").json() == [name, 2]


def test_row_69_bad_json_wins_over_a_missing_method(serving: Serving) -> None:
    is_error(serving.client.post("/v1/models/aliases/chat/completions", content=b"nope"), 400, 700)


def test_row_70_in_the_binary_form(serving: Serving) -> None:
    response = serving.predict("answers", content=msgpack.packb("numpy"), headers=BINARY)
    result = binary_form.decode(response.content)
    assert result["array"].dtype.str == "<f4"
    assert result["array"].tolist() == [[0, 1], [2, 3]]
    assert (result["integer"].dtype.str, int(result["integer"])) == ("<i8", 3)


def test_row_71_the_binary_form_is_told_by_the_content_type(serving: Serving) -> None:
    response = serving.predict("echo", content=msgpack.packb({"a": [1, None, "ü"]}), headers=BINARY)
    assert response.headers["content-type"] == "application/octet-stream"
    assert msgpack.unpackb(response.content) == {"a": [1, None, "ü"]}


@pytest.mark.parametrize("value", binary_form.VALUES, ids=lambda value: type(value).__name__)
def test_row_72_values_come_back_with_their_types(value: Any, serving: Serving) -> None:
    sent = binary_form.encode(value)
    response = serving.predict("echo", content=sent, headers=BINARY)
    assert response.status_code == 200, response.text
    assert response.content == sent
    assert binary_form.same(binary_form.decode(response.content), value)


def test_row_73_nothing_is_unpickled(serving: Serving, tmp_path: Any) -> None:
    trap = tmp_path / "executed"
    response = serving.predict("echo", content=binary_form.object_array(trap), headers=BINARY)
    is_error(response, 400, 700)
    assert not trap.exists()


def test_row_83_records_carry_the_ids_of_their_request(serving: Serving) -> None:
    start = len(serving.log())
    serving.predict("logging", "one", headers={"x-baseten-request-id": "abc"})
    serving.predict("logging", "two")
    told = serving.wait_for_log("a line about two", start).splitlines()
    (one,) = (line for line in told if "a line about one" in line)
    (two,) = (line for line in told if "a line about two" in line)
    assert "request_id=abc" in one
    assert "request_id" not in two


# Streams that are read to their end.


def chunks_of(response: httpx.Response) -> list[bytes]:
    return list(response.iter_raw())


def test_row_40_a_stream_has_a_chunk_for_each_item(serving: Serving) -> None:
    with serving.stream("streams", "numbers") as response:
        assert b"".join(chunks_of(response)) == b"01234"
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(("row", "inputs", "text"), [(41, "numbers", "01234"), (42, "emoji", "🙂")])
def test_rows_41_42_who_accepts_only_json_gets_the_stream_gathered(
    row: int, inputs: str, text: str, serving: Serving
) -> None:
    response = serving.predict("streams", inputs, headers={"accept": "application/json"})
    assert (response.headers["content-type"], response.json()) == ("application/json", text)
    assert "transfer-encoding" not in response.headers


@pytest.mark.parametrize(
    ("row", "endpoint", "headers"),
    [
        (43, "chat/completions", {"accept": "application/json", "user-agent": "OpenAI/Python 1.2"}),
        (43, "messages", {"accept": "application/json", "user-agent": "AsyncOpenAI/Python 1.2"}),
        (44, "chat/completions", {"accept": "application/json, */*"}),
    ],
)
def test_rows_43_44_everybody_else_gets_it_as_a_stream(
    row: int, endpoint: str, headers: dict[str, str], serving: Serving
) -> None:
    response = serving.call("streams", endpoint, headers=headers)
    assert response.headers["transfer-encoding"] == "chunked"
    assert response.text in ("chat completions", "messages")
