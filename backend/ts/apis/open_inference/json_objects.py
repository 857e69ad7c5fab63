"""The members of a request's JSON that endpoints of the server read, too: the object itself, its id, its parameters."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ts.jobs.errors import RowFailure

#: Half of a surrogate pair as JSON may write it; alone it has no form in UTF-8.
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_object(text: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object that a body holds. Raises Failure: the body is not JSON (400) or not an object (422)."""
    try:
        document = orjson.loads(text)
    except ValueError as error:
        document = _parse_leniently(text, error)
    if type(document) is not dict:
        raise RowFailure(422, f"The request body must be a JSON object, it is {kind_of(document)}.")
    return document


def read_id(document: Mapping[str, Any]) -> str | None:
    """Return the id of a request; None without one, or for an empty one. Raises Failure: the id is not a text."""
    given = document.get("id")
    if given is None or given == "":
        return None
    if type(given) is not str:
        raise RowFailure(422, f'The request\'s "id" must be a text, it is {kind_of(given)}.')
    return given


def read_parameters(holder: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return an object's ``parameters`` without null values. Raises Failure: the member is not an object."""
    parameters = holder.get("parameters")
    if not parameters and (parameters is None or type(parameters) is dict):
        return {}
    if type(parameters) is not dict:
        raise RowFailure(422, f'{what} has "parameters" that are {kind_of(parameters)}; they must be an object.')
    return {name: value for name, value in parameters.items() if value is not None}


def _parse_leniently(text: bytes | memoryview, error: ValueError) -> Any:
    """Parse JSON with NaN and infinities as Python's own encoder writes them."""
    whole = bytes(text)
    try:
        document = json.loads(whole)
        if _SURROGATE.search(whole):
            json.dumps(document, ensure_ascii=False).encode()  # fails where the other half is missing
    except (ValueError, RecursionError):
        raise RowFailure(400, f"The request body is no JSON: {error}.") from None
    return document


def kind_of(value: Any) -> str:
    """Return the kind of a value as messages name it."""
    if value is None:
        return "nothing"
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number")
