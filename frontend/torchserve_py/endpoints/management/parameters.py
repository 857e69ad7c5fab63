"""The parameters of a management call, from its query or its JSON body.

TorchServe takes its default for a value that it cannot read. Here such a value is an error that names it: a mistyped
number of workers is better told than guessed. An empty number or boolean means that it was not given, as in TorchServe.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.openapi import Operation, Parameter
from torchserve_py.endpoints.requests import read_small_body
from torchserve_py.net.http1.request import Request
from ts.protocol.media_types import JSON

logger = logging.getLogger(__name__)

#: How many characters of an unknown parameter's name, and how many such names, a warning shows.
_SHOWN: Final = 100
_SHOWN_NAMES: Final = 5
_INTEGER = re.compile(r"[+-]?[0-9]+")
#: The most digits that an integer may have: more than any parameter needs.
_MOST_DIGITS: Final = 18
#: How many characters of a wrong value a message shows.
_SHOWN_OF_VALUE: Final = 80
_TRUTHS: Final = {"true": True, "false": False}


def of_query(request: Request, operation: Operation, *more: str) -> dict[str, Any]:
    """Return the parameters of a query, each of the type that the operation declares; of one given twice, the first.

    TorchServe ignores parameters that an operation does not have, and its clients send some, so that they are only told
    in the log; ``more`` names those that the operation has but documents do not list. Raises EndpointError: a value is
    of another type.
    """
    return _read(dict(reversed(request.query)), operation, more)


async def of_query_or_json(request: Request, max_size: int, operation: Operation) -> dict[str, Any]:
    """Return the parameters of a JSON body (the query is ignored then), or of the query where the body is not JSON.

    Raises EndpointError: a value is of another type; the body is too large, does not arrive, or is not a JSON object.
    """
    if request.content_type != JSON:
        return of_query(request, operation)
    body = await read_small_body(request, max_size)
    return _read(read_object(body), operation)


def _read(values: Mapping[str, Any], operation: Operation, more: Iterable[str] = ()) -> dict[str, Any]:
    known = [*(parameter.name for parameter in operation.parameters), *more]
    unknown = [name for name in values if name not in known]
    if unknown:
        logger.warning(
            "%s: ignored %s, which it does not have; its parameters are %s",
            operation.id,
            ", ".join(ascii(name[:_SHOWN]) for name in unknown[:_SHOWN_NAMES]),
            ", ".join(known),
        )
    read = {each.name: _value(each, values.get(each.name)) for each in operation.parameters if each.has_effect}
    return {name: value for name, value in read.items() if value is not None}


def _value(parameter: Parameter, value: Any) -> Any:
    """Return the value as one of the parameter's type, or None if it was not given."""
    is_text = isinstance(value, str)
    if parameter.type == "string":
        right, read = "text", value if is_text else None
    elif parameter.type == "integer":
        digits = value.strip() if is_text else str(value) if type(value) is int else ""
        is_integer = _INTEGER.fullmatch(digits) is not None
        is_short = len(digits.lstrip("+-")) <= _MOST_DIGITS
        right = f"an integer of at most {_MOST_DIGITS} digits" if is_integer else "an integer"
        read = int(digits) if is_integer and is_short else None
    else:
        truth = _TRUTHS.get(value.strip().lower()) if is_text else value
        right, read = "true or false", truth if isinstance(truth, bool) else None
    if read is None and value not in (None, ""):
        text = value if is_text else json.dumps(value)
        shown = text if len(text) <= _SHOWN_OF_VALUE else f"{text[:_SHOWN_OF_VALUE]}..."
        raise bad_request(f"Parameter {parameter.name}: {shown!r} is not {right}.")
    return read


def read_object(body: bytes) -> dict[str, Any]:
    """Read a body that must be a JSON object. Raises EndpointError: it is something else."""
    try:
        values = json.loads(body)
    except ValueError as error:  # no JSON, or no UTF-8
        raise bad_request(f"The request body is not JSON: {error}") from None
    except RecursionError:
        raise bad_request("The request body is not usable: its JSON is nested too deeply.") from None
    if not isinstance(values, dict):
        raise bad_request(f"The request body must be a JSON object, it is {type(values).__name__}.")
    return values
