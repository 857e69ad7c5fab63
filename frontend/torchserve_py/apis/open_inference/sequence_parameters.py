"""The sequence that the parameters of an Open Inference request name."""

from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.core.jobs.call import SequenceRequest
from torchserve_py.core.serving.serving import ServedModel, Serving
from torchserve_py.endpoints.failures import bad_request
from torchserve_py.endpoints.sequences import (
    CLAIM_NAMES,
    SequenceHeaders,
    StepClaim,
    check_headers_once,
    claim_of,
    claim_within,
    is_marked,
)
from ts.protocol.messages import STEP_NUMBER

ID: Final = "sequence_id"
_START: Final = "sequence_start"
_END: Final = "sequence_end"
#: What parameters may say of a sequence besides its id.
_MORE: Final = frozenset((_START, _END, *CLAIM_NAMES))
_MAX_ID: Final = 2**64 - 1


def sequence_of(
    headers: SequenceHeaders,
    serving: Serving,
    model: ServedModel,
    parameters: Mapping[str, Any],
    sent: Mapping[str, str],
) -> SequenceRequest:
    """Return the sequence that the parameters of an Open Inference request to a stateful model name, or its headers.

    The parameters are Triton's: ``sequence_id`` is a number or a text, and ``sequence_start`` begins a sequence. Where
    a header names the sequence, what they say besides its id counts, too.

    Raises EndpointError: the id is missing or invalid, a marker is neither true nor false, parameters and headers say
    that the request is two steps, or it continues a sequence that is not open (a stored sequence may be open at another
    server, or from before a restart).
    """
    is_named_by_header = parameters.get(ID) is None and headers.id_name in sent
    if is_named_by_header and _MORE.isdisjoint(parameters):
        return headers.of(sent)
    starts, ends = (is_marked(f"Parameter {name}", parameters.get(name)) for name in (_START, _END))
    check_headers_once(sent, (headers.id_name, *headers.more_names) if is_named_by_header else CLAIM_NAMES)
    claim = claim_within(StepClaim(*(_text(parameters, name) for name in CLAIM_NAMES)), claim_of(sent))
    if is_named_by_header:
        start, end, *_ = map(sent.get, headers.more_names)
        return headers.of_values(sent[headers.id_name], starts or start, ends or end, claim)
    sequence_id = _id(parameters.get(ID))
    if not starts and claim.number is None and not serving.knows_sequence(model, sequence_id):
        raise bad_request(
            f'Sequence {parameters[ID]} of model "{model.name}" is not open: it must specify the START flag on the '
            f"first request of the sequence ({_START}: true)."
        )
    return headers.of_values(sequence_id, starts or None, ends or None, claim)


def _text(parameters: Mapping[str, Any], name: str) -> str | None:
    """Return a parameter that is a text, or the number of a step."""
    value = parameters.get(name)
    if value is None or isinstance(value, str):
        return value
    if name == STEP_NUMBER:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        raise bad_request(f"Parameter {name}: {value!r} is not the number of a step; steps are numbered from 1.")
    raise bad_request(f"Parameter {name}: {value!r} is not a text.")


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
            f"Parameter {ID}: {value!r} is not a sequence id; it is a text or a whole number up to {_MAX_ID}."
        )
    return str(value)
