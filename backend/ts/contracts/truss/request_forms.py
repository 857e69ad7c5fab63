"""The forms of requests to a Truss: Truss's own, TorchServe's ``/predictions``, and Open Inference.

A form reads the inputs from a row, and writes results and errors as the endpoint of its protocol expects them. In
Truss's own form a request with the content type ``application/octet-stream`` is binary (msgpack), every other one JSON,
and the answer is what the request is.
"""

import functools
import json
import logging
from abc import ABC, abstractmethod
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ts.contracts.truss.encodings import from_msgpack, to_json, to_msgpack
from ts.contracts.truss.model_request import header
from ts.contracts.truss.reply import (
    BINARY_HEADERS,
    CLIENT_ERROR,
    JSON_HEADERS,
    SERVER_ERROR,
    Headers,
    Problem,
    TrussAnswer,
)
from ts.jobs.charsets import in_utf8
from ts.jobs.errors import RowFailure, wire_text
from ts.protocol.frames import Buffer
from ts.protocol.messages import InferRow, ResultRow
from ts.runtime.result_bodies import error_row

logger = logging.getLogger(__name__)

_BINARY_TYPE: Final = "application/octet-stream"


class Form(ABC):
    """The form of one request, which reads the inputs and writes results and errors.

    Attributes:
        name: The form's name in traces.
        stream_headers: The headers of a streamed answer.
        passes_responses: Whether a response that the model makes itself can be the answer.
    """

    name: str
    stream_headers: Headers = ()
    passes_responses = False

    @abstractmethod
    def decode(self, input_type: type[BaseModel] | None) -> Any:
        """Return the inputs. Raises `Problem` for an invalid request."""

    @abstractmethod
    def encode(self, result: Any) -> TrussAnswer:
        """Return the answer for a result. Raises `Problem` if the form cannot represent the result."""

    @abstractmethod
    def encode_chunk(self, chunk: Any) -> Buffer:
        """Return the body of one part of a stream. Raises TypeError if the form cannot represent the chunk."""

    @abstractmethod
    def gathers(self) -> bool:
        """Whether the client wants a stream as one whole answer."""

    def problem_row(self, job_id: str, problem: Problem) -> ResultRow:
        """Return the row of a request that failed before its first answer; the endpoint writes the error's form."""
        text = problem.error if isinstance(problem.error, str) else to_json(problem.error).decode()
        return error_row(job_id, problem.status, wire_text(text))


class TrussForm(Form):
    """Truss's own: JSON or the binary form, by the content type of the request."""

    stream_headers = BINARY_HEADERS
    passes_responses = True

    def __init__(self, row: InferRow) -> None:
        self._row = row
        self._read_type(row.content_type)

    def _read_type(self, content_type: str | None) -> None:
        self._binary = is_binary(content_type)
        self.name = "binary" if self._binary else "json"

    def decode(self, input_type: type[BaseModel] | None) -> Any:
        return decode(self._body(), input_type, binary=self._binary)

    def _body(self) -> Any:
        """Return the body, JSON in UTF-8. Raises Problem: it cannot be decoded by its charset."""
        if self._binary:
            return self._row.body
        try:
            return in_utf8(self._row.body, self._row.content_type)
        except RowFailure as failure:
            raise Problem(failure.status, CLIENT_ERROR, failure.message) from failure

    def encode(self, result: Any) -> TrussAnswer:
        return encode(result, binary=self._binary)

    def encode_chunk(self, chunk: Any) -> Buffer:
        if isinstance(chunk, str):
            return chunk.encode()
        if isinstance(chunk, bytes | bytearray | memoryview):
            return chunk
        raise TypeError(f"the model has yielded a {type(chunk).__name__}; a chunk of a stream must be str or bytes")

    def gathers(self) -> bool:
        """Whether the client accepts only JSON; OpenAI's clients state that even if they want a stream."""
        if header(self._row, b"accept") != "application/json":
            return False
        return "openai" not in header(self._row, b"user-agent").lower()

    def problem_row(self, job_id: str, problem: Problem) -> ResultRow:
        status, headers, body = problem.answer()
        return ResultRow(job_id, False, status, "", headers, body)


class PredictionsForm(TrussForm):
    """TorchServe's: a predict's body, and errors of TorchServe's shape; query parameters join the inputs of a dict."""

    def __init__(self, row: InferRow) -> None:
        super().__init__(row)
        self._parameters: dict[str, Any] = {}
        body = row.body
        if isinstance(body, list):
            self._parameters = {
                name: value if isinstance(value, str) else value.decode("utf-8", "replace")
                for name, _, value in body
                if name is not None
            }
            content_type, raw = next(((type_, value) for name, type_, value in body if name is None), (None, b""))
            self._row = row._replace(content_type=content_type, body=raw)
            self._read_type(content_type)

    def decode(self, input_type: type[BaseModel] | None) -> Any:
        if not self._parameters:
            return super().decode(input_type)
        inputs = decode(self._body(), None, binary=self._binary) if self._row.body else {}
        if not isinstance(inputs, dict):
            names = ", ".join(map(repr, self._parameters))
            raise Problem(400, CLIENT_ERROR, f"The parameters {names} need a body that is a JSON object, or none.")
        inputs |= self._parameters
        return inputs if input_type is None else validate(inputs, input_type)

    problem_row = Form.problem_row


@functools.lru_cache(maxsize=256)
def is_binary(content_type: str | bytes | None) -> bool:
    """Return whether a request with that content type is in the binary form."""
    if not content_type:
        return False
    text = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    return text.partition(";")[0].strip().lower() == _BINARY_TYPE


def decode(body: bytes, input_type: type[BaseModel] | None, *, binary: bool) -> Any:
    """Return the inputs in a body. Raises Problem: it cannot be decoded, or does not match ``input_type``."""
    try:
        inputs = from_msgpack(body) if binary else json.loads(body)
    except (ValueError, RecursionError) as error:
        if input_type is not None:
            raise _unparsable([("__root__", str(error))]) from error
        raise Problem(400, CLIENT_ERROR, str(error) if binary else f"Invalid JSON payload: {error}") from error
    return inputs if input_type is None else validate(inputs, input_type)


def validate(inputs: Any, input_type: type[BaseModel]) -> BaseModel:
    """Return inputs as the type of the model's annotation. Raises Problem: they do not match the type."""
    try:
        return input_type.model_validate(inputs)
    except ValidationError as error:
        raise _unparsable([(_place(each["loc"]), each["msg"]) for each in error.errors()]) from error


def encode(result: Any, *, binary: bool) -> TrussAnswer:
    """Return the answer for a result. Raises Problem: the form cannot represent it; the log gives the reason."""
    try:
        if binary:
            if isinstance(result, BaseModel):
                result = result.model_dump()
            return TrussAnswer(200, BINARY_HEADERS, result if isinstance(result, bytes) else to_msgpack(result))
        if isinstance(result, BaseModel):
            return TrussAnswer(200, JSON_HEADERS, result.model_dump_json().encode())
        return TrussAnswer(200, JSON_HEADERS, to_json(result))
    # The values are the model's objects, which may fail in any way.
    except Exception as error:
        form = "MessagePack" if binary else "JSON"
        if isinstance(error, RecursionError):  # its traceback is as long as the stack was deep
            logger.error("The model's result cannot be encoded as %s: it holds itself, or is nested too deeply", form)
        else:
            logger.exception("The model's result cannot be encoded as %s", form)
        raise Problem(
            500, SERVER_ERROR, f"The model's result cannot be encoded as {form}; the server's log says why."
        ) from error


def _unparsable(problems: list[tuple[str, str]]) -> Problem:
    head = "Input Parsing Error:" if len(problems) == 1 else "Input Parsing Errors:"
    return Problem(400, CLIENT_ERROR, "\n".join([head, *(f"  `{where}`: {what}." for where, what in problems)]))


def _place(location: tuple[int | str, ...]) -> str:
    """Return where in the inputs a problem is: ``a.b[1].c``."""
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return place.removeprefix(".")
