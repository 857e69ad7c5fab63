"""The sequence that the parameters of an Open Inference request name.

The parameters are Triton's: ``sequence_id`` is a number or a text, ``sequence_start`` begins a sequence, and a request
to a stateful model without a sequence is refused. The handler gets the headers of `sequences`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.doors.failures import bad_request
from ts.protocol.messages import REQUEST_ID

if TYPE_CHECKING:
    from torchserve_py.core.serving import ServedModel, Serving
    from torchserve_py.doors.sequences import SequenceHeaders
    from torchserve_py.jobs.inference_request import SequenceRequest

ID: Final = "sequence_id"
START: Final = "sequence_start"
END: Final = "sequence_end"

_MAX_ID: Final = 2**64 - 1


def sequence_of(
    headers: SequenceHeaders, serving: Serving, model: ServedModel, parameters: Mapping[str, Any]
) -> SequenceRequest:
    """Return the sequence that the parameters of a request to a stateful model name.

    Args:
        headers: The headers that the handler gets.
        parameters: The parameters as bool, int, float, str or None.

    Raises:
        DoorError: The id is missing or invalid, a marker is no truth value, or the request continues a sequence that is
            not open (a stored sequence may be open at another server, or from before a restart).
    """
    sequence_id = _id(parameters.get(ID))
    starts, ends = (_marker(name, parameters.get(name)) for name in (START, END))
    if not starts and not serving.knows_sequence(model, sequence_id):
        raise bad_request(
            f'Sequence {parameters[ID]} of model "{model.name}" is not open: it must specify the START flag on the '
            f"first request of the sequence ({START}: true)."
        )
    request_id = parameters.get(REQUEST_ID)
    if request_id is not None and not isinstance(request_id, str):
        raise bad_request(f"Parameter {REQUEST_ID}: {request_id!r} is no text.")
    return headers.request_of(sequence_id, "true" if starts else None, "true" if ends else None, request_id)


def _id(value: Any) -> str:
    """Return the id as text; different ids have different texts.

    A number is written in decimal. A text of digits, or one that begins with a quote, is put in quotes, so that the
    text "1" and the number 1 differ.
    """
    if value is None or (value in (0, "") and not isinstance(value, bool)):
        raise bad_request(
            f"The model is stateful: inference requests must specify a non-zero or non-empty correlation ID ({ID})."
        )
    if isinstance(value, str):
        return f'"{value}"' if value.isdecimal() or value.startswith('"') else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_ID:
        raise bad_request(
            f"Parameter {ID}: {value!r} is no sequence id; it is a text or a whole number up to {_MAX_ID}."
        )
    return str(value)


def _marker(name: str, value: Any) -> bool:
    if value is None:
        return False
    if not isinstance(value, bool):
        raise bad_request(f"Parameter {name}: {value!r} is neither true nor false.")
    return value
