"""The sequence that the headers or the parameters of a request name.

Header names match in any case, as in HTTP. The handler gets the names as they are configured, even if the client's
library changed their case.
"""

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from torchserve_py.core.serving import ServedModel, Serving
from torchserve_py.doors.failures import bad_request
from torchserve_py.jobs.inference_request import SequenceRequest
from torchserve_py.settings.table import Settings
from ts.protocol.messages import REQUEST_ID, SEQUENCE_ID_SEPARATOR

#: What a marker may say, in any case; an empty header is no marker.
_MARKERS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}
#: Characters of the id of a sequence or of a request; the server keeps ids as long as the sequence is open.
MAX_ID_LENGTH: Final = 1000
#: SageMaker's header for the id of a session, and the id that asks for a new one.
SESSION_ID: Final = "X-Amzn-SageMaker-Session-Id"
NEW_SESSION: Final = "NEW_SESSION"
#: The parameters of Open Inference requests.
ID: Final = "sequence_id"
_START: Final = "sequence_start"
_END: Final = "sequence_end"
_MAX_ID: Final = 2**64 - 1
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

#: Whether a sequence starts or ends, in a word or as a truth value; None if the request does not say.
Marker = str | bool | None


class SequenceHeaders:
    """Reads the three configured headers."""

    def __init__(self, settings: Settings) -> None:
        self.id_name: str = settings.ts_header_key_sequence_id
        self._start: str = settings.ts_header_key_sequence_start
        self.end_name: str = settings.ts_header_key_sequence_end
        self._asks_for_new = NEW_SESSION if self.id_name.lower() == SESSION_ID.lower() else ""

    def of(self, sent: Mapping[str, str]) -> SequenceRequest:
        """Return the sequence that the headers of a request, or the metadata of a gRPC call, name, as `request_of`."""
        return self.request_of(
            sent.get(self.id_name, ""), sent.get(self._start), sent.get(self.end_name), sent.get(REQUEST_ID)
        )

    def request_of(
        self, sequence_id: str, start: Marker, end: Marker, request_id: str | None = None
    ) -> SequenceRequest:
        """Return the sequence of a request with these values of the three headers, and the id of the request.

        A request without an id (or with an empty one) opens a sequence of its own, ``ts-seq-<uuid4>``; so does
        ``NEW_SESSION`` where the header is SageMaker's. Raises DoorError: an id is not usable, or a marker is neither
        true nor false.
        """
        for name, given in ((self.id_name, sequence_id), (REQUEST_ID, request_id or "")):
            if len(given) > MAX_ID_LENGTH:
                raise bad_request(f"Header {name}: an id has up to {MAX_ID_LENGTH} characters, this one {len(given)}.")
        if sequence_id in ("", self._asks_for_new):
            is_marked(f"Header {self._start}", start)
            sequence_id, start = f"ts-seq-{uuid.uuid4()}", True
        elif not sequence_id.isprintable() and _UNUSABLE.search(sequence_id):
            raise bad_request(
                f"Header {self.id_name}: {sequence_id!a} is no sequence id; use printable characters in UTF-8."
            )
        elif SEQUENCE_ID_SEPARATOR in sequence_id or sequence_id != sequence_id.strip():
            # A handler that ends this sequence would end the sequences whose ids are the pieces of this id.
            raise bad_request(
                f"Header {self.id_name}: {sequence_id!a} is no sequence id; it must hold no {SEQUENCE_ID_SEPARATOR!r},"
                " which separates ids, and neither begin nor end with a space."
            )
        headers = [(self.id_name, sequence_id)]
        if start is end is request_id is None:
            return SequenceRequest(sequence_id, False, False, tuple(headers))
        starts, ends = is_marked(f"Header {self._start}", start), is_marked(f"Header {self.end_name}", end)
        for name, marker, is_set in ((self._start, start, starts), (self.end_name, end, ends)):
            if marker is not None:
                headers.append((name, "true" if is_set else "false"))  # the words that TorchServe's handlers know
        if request_id:
            if _UNUSABLE.search(request_id):
                raise bad_request(f"Header {REQUEST_ID}: {request_id!a} is no id; use printable characters in UTF-8.")
            headers.append((REQUEST_ID, request_id))
        return SequenceRequest(sequence_id, starts, ends, tuple(headers))

    def of_step(self, sequence_id: str, starts: bool, ends: bool, number: int) -> SequenceRequest:
        """Return the sequence of a step of a session; the step's number is the id of its request."""
        return self.request_of(sequence_id, starts or None, ends or None, str(number))


def sequence_of(
    headers: SequenceHeaders,
    serving: Serving,
    model: ServedModel,
    parameters: Mapping[str, Any],
    sent: Mapping[str, str],
) -> SequenceRequest:
    """Return the sequence that the parameters of an Open Inference request to a stateful model name, or its headers.

    The parameters are Triton's: ``sequence_id`` is a number or a text, and ``sequence_start`` begins a sequence.

    Raises DoorError: the id is missing or invalid, a marker is no truth value, or the request continues a sequence that
    is not open (a stored sequence may be open at another server, or from before a restart).
    """
    if parameters.get(ID) is None and headers.id_name in sent:
        return headers.of(sent)
    sequence_id = _id(parameters.get(ID))
    starts, ends = (is_marked(f"Parameter {name}", parameters.get(name)) for name in (_START, _END))
    if not starts and not serving.knows_sequence(model, sequence_id):
        raise bad_request(
            f'Sequence {parameters[ID]} of model "{model.name}" is not open: it must specify the START flag on the '
            f"first request of the sequence ({_START}: true)."
        )
    request_id = parameters.get(REQUEST_ID)
    if request_id is not None and not isinstance(request_id, str):
        raise bad_request(f"Parameter {REQUEST_ID}: {request_id!r} is no text.")
    return headers.request_of(sequence_id, starts or None, ends or None, request_id)


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


def is_marked(place: str, value: Any) -> bool:
    """Return whether the marker is set that stands at ``place``; None is no marker.

    Raises DoorError: the value is neither a truth value nor a word for one.
    """
    if value is None or isinstance(value, bool):
        return bool(value)
    meaning = _MARKERS.get(value.strip().lower()) if isinstance(value, str) else None
    if meaning is None:
        raise bad_request(f"{place}: {value!a} is neither true nor false; use true or false, 1 or 0, or leave it out.")
    return meaning
