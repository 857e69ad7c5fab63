"""Decodes the body of a request to a Truss model's inputs, and encodes the model's result as the body of the answer.

A request with the content type ``application/octet-stream`` is in the binary form (msgpack), every other one in JSON.
The answer has the form of the request.
"""

import functools
import json
import logging
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from ts.runtimes.truss.encodings import from_msgpack, to_json, to_msgpack
from ts.runtimes.truss.reply import (
    BINARY_HEADERS,
    CLIENT_ERROR,
    JSON_HEADERS,
    SERVER_ERROR,
    Answer,
    Problem,
)

logger = logging.getLogger(__name__)

_BINARY_TYPE: Final = "application/octet-stream"


@functools.lru_cache(maxsize=256)
def is_binary(content_type: str | bytes | None) -> bool:
    """Return whether a request with that content type is in the binary form."""
    if not content_type:
        return False
    text = content_type.decode("latin-1") if isinstance(content_type, bytes) else content_type
    return text.partition(";")[0].strip().lower() == _BINARY_TYPE


def decode(body: bytes, input_type: type[BaseModel] | None, *, binary: bool) -> Any:
    """Return the inputs in a body, parsed to ``input_type`` if there is one.

    Raises Problem: the body cannot be decoded, or does not match ``input_type``.
    """
    try:
        inputs = from_msgpack(body) if binary else json.loads(body)
    except (ValueError, RecursionError) as error:
        if input_type is not None:
            raise _unparsable([("__root__", str(error))]) from error
        raise Problem(400, CLIENT_ERROR, str(error) if binary else f"Invalid JSON payload: {error}") from error
    return inputs if input_type is None else validate(inputs, input_type)


def validate(inputs: Any, input_type: type[BaseModel]) -> BaseModel:
    """Return decoded inputs as an instance of the type in the model's annotation.

    Raises Problem: the inputs do not match the type.
    """
    try:
        return input_type.model_validate(inputs)
    except ValidationError as error:
        raise _unparsable([(_place(each["loc"]), each["msg"]) for each in error.errors()]) from error


def encode(result: Any, *, binary: bool) -> Answer:
    """Return the answer for a model's result.

    Raises Problem: the form cannot represent the result; the log gives the reason.
    """
    try:
        if binary:
            if isinstance(result, BaseModel):
                result = result.model_dump()
            return Answer(200, BINARY_HEADERS, result if isinstance(result, bytes) else to_msgpack(result))
        if isinstance(result, BaseModel):
            return Answer(200, JSON_HEADERS, result.model_dump_json().encode())
        return Answer(200, JSON_HEADERS, to_json(result))
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
