"""The parameters of a management call, from its query or its JSON body.

TorchServe takes its default for a value that it cannot read. Here such a value is an error that names it: a mistyped
number of workers is better told than guessed. An empty number or boolean means that it was not given, as in TorchServe.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from torchserve_py.doors.failures import bad_request
from torchserve_py.doors.openapi import Operation
from torchserve_py.doors.requests import read_small_body
from torchserve_py.transport.http1.request import Request

logger = logging.getLogger(__name__)

#: How many characters of an unknown parameter's name, and how many such names, a warning shows.
_SHOWN: Final = 100
_SHOWN_NAMES: Final = 5
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_JSON_TYPE = "application/json"


class Parameters:
    """The parameters of a call: texts in a query, values of any type in JSON."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        """Return a text, or None if it was not given.

        Raises DoorError: it is something else (every method raises it for a value of the wrong kind).
        """
        value = self._values.get(name)
        if value is None or isinstance(value, str):
            return value
        raise _wrong(name, value, "text")

    def integer(self, name: str) -> int | None:
        """Return an integer, or None if it was not given."""
        value = self._values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
            return int(value)
        raise _wrong(name, value, "an integer")

    def count(self, name: str, default: int) -> int:
        """Return an integer of at least 0."""
        value = self.integer(name)
        if value is None:
            return default
        if value < 0:
            raise _wrong(name, value, "an integer of at least 0")
        return value

    def boolean(self, name: str) -> bool | None:
        """Return the truth value of ``true`` or ``false``, in any case, or None if it was not given."""
        value = self._values.get(name)
        if value is None or value == "":
            return None
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in ("true", "false"):
            return value.strip().lower() == "true"
        raise _wrong(name, value, "true or false")

    def given(self, operation: Operation) -> dict[str, Any]:
        """Return the parameters of an operation that were given, each of its declared type."""
        read = {"string": self.text, "integer": self.integer, "boolean": self.boolean}
        values = {each.name: read[each.type](each.name) for each in operation.parameters}
        return {name: value for name, value in values.items() if value is not None}


def of_query(request: Request, operation: Operation, *more: str) -> Parameters:
    """Return the parameters of a query; of one that is given twice, the first.

    TorchServe ignores parameters that an operation does not have, and its clients send some, so that they are only told
    in the log; ``more`` names those that the operation has but documents do not list.
    """
    values: dict[str, str] = {}
    for name, value in request.query:
        values.setdefault(name, value)
    return _checked(values, operation, more)


async def of_query_or_json(request: Request, max_size: int, operation: Operation) -> Parameters:
    """Return the parameters of a JSON body (the query is ignored then), or of the query where the body is not JSON.

    Raises DoorError: the body is too large, does not arrive, or is not a JSON object.
    """
    if request.content_type != _JSON_TYPE:
        return of_query(request, operation)
    body = await read_small_body(request, max_size)
    return _checked(read_object(body), operation)


def _checked(values: Mapping[str, Any], operation: Operation, more: Iterable[str] = ()) -> Parameters:
    known = [*(parameter.name for parameter in operation.parameters), *more]
    unknown = [name for name in values if name not in known]
    if unknown:
        logger.warning(
            "%s: ignored %s, which it does not have; its parameters are %s",
            operation.id,
            ", ".join(ascii(name[:_SHOWN]) for name in unknown[:_SHOWN_NAMES]),
            ", ".join(known),
        )
    return Parameters(values)


def read_object(body: bytes) -> dict[str, Any]:
    """Read a body that must be a JSON object. Raises DoorError: it is something else."""
    try:
        values = json.loads(body)
    except ValueError as error:  # no JSON, or no UTF-8
        raise bad_request(f"The request body is not JSON: {error}") from None
    except RecursionError:
        raise bad_request("The request body is not usable: its JSON is nested too deeply.") from None
    if not isinstance(values, dict):
        raise bad_request(f"The request body must be a JSON object, it is {type(values).__name__}.")
    return values


def _wrong(name: str, value: Any, right: str) -> Exception:
    shown = value if isinstance(value, str) else json.dumps(value)
    return bad_request(f"Parameter {name}: {shown!r} is not {right}.")
