"""Makes the request that sends a record of a journal again, to another version of its model.

Requests go to the endpoint where they came, or to one that means the same and can name a version. Requests over gRPC
with TorchServe's messages, the steps of live sessions and what nodes of workflows got go to TorchServe's path over
HTTP: the model gets the same.
"""

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from google.protobuf.message import DecodeError

from torchserve_py.apis.open_inference.sequence_parameters import ID
from torchserve_py.core.jobs.call import VERSION_HEADER
from torchserve_py.endpoints.requests import model_in
from torchserve_py.tools.journal.journal_record import PARAMETERS, SECRET_HEADERS, JournalRecord, content_of
from torchserve_py.tools.replay.recorded_paths import (
    ENDPOINT,
    NAMED_IN_BODY,
    RESPONSES,
    NotReplayable,
    names_of,
    target_of,
)
from ts.apis.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, OPENPI, REQUEST_ID, STEP_NUMBER

#: What of the recorded headers is not sent: the server's own, those of the recorded connection, what a replay itself
#: decides, and what would be for somebody else on the way.
_NOT_SENT: Final = SECRET_HEADERS | {
    *(
        "url_path",
        "explain",
        "traceparent",
        "user-agent",
        "host",
        "connection",
        "keep-alive",
        "upgrade",
        "te",
        "trailer",
    ),
    *("transfer-encoding", "content-length", "expect", "forwarded", "via", VERSION_HEADER),
}
#: The beginnings of headers that are not sent either; those that name a sequence are recorded by themselves.
_NOT_SENT_PREFIXES: Final = (":", "proxy-", "sec-", "x-forwarded-", "ts_request_sequence", "ts_sequence")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_NOT_IN_HEADERS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = "inference-header-content-length"
_SEQUENCE_PARAMETERS: Final = (ID, "sequence_start", "sequence_end")
#: What of the recorded headers metadata of gRPC cannot have.
_NOT_METADATA: Final = frozenset(("content-type", "content-encoding", "te"))
#: Metadata by which a stream has the model's messages without an envelope.
_BARE: Final = {"x-stream-envelope": "mlserver"}
_SERVICE: Final = "/inference.GRPCInferenceService"
_UNREADABLE: Final = "its body cannot be read"
_FLAGS: Final = frozenset(("true", "false"))
_NO_VERSION: Final = b"\x12\x00"


class ReplayRequest(NamedTuple):
    """A request to an endpoint of a server.

    Attributes:
        endpoint: ``http``, ``grpc`` for a call with one message, or ``openpi`` for a message to a socket.
        method: Of HTTP.
        path: Of HTTP, of a call, or of the socket.
        headers: Or metadata.
        body: Or the message.
    """

    endpoint: Literal["http", "grpc", "openpi"]
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def request_of(record: JournalRecord, version: str | None, sequence_id: str | None) -> ReplayRequest:
    """Return the request of a record for a version of its model, None for the default one.

    ``sequence_id`` stands for the recorded id of its sequence. Raises NotReplayable.
    """
    if record["body_cut"]:
        raise NotReplayable("its body was cut (maxBodyBytes)")
    if record["more_input"]:
        raise NotReplayable("its call has several inputs")
    headers = {name: value for name, value in record["headers"].items() if _is_sent(name, value)}
    match record["protocol"]:
        case str(protocol) if protocol == OPEN_INFERENCE_GRPC:
            return _call_of(record, headers, version, sequence_id)
        case str(protocol) if protocol == OPENPI:
            if sequence_id is None:
                raise NotReplayable("it is of no episode")
            return ReplayRequest("openpi", "GET", f"/openpi/{names_of(record, version)}", headers, _bytes_of(record))
    if record["content_type"] and _is_sent("content-type", record["content_type"]):
        headers["content-type"] = record["content_type"]
    method, path = target_of(record, version, headers)
    body = _body_of(record, headers)
    if record["protocol"] == RESPONSES or path[1:] in NAMED_IN_BODY:
        _check_model_in_body(record, headers, body)
    if record["protocol"] == OPEN_INFERENCE_REST:
        headers.pop("content-encoding", None)
        body = _without_sequence(body, headers)
    if sequence_id is not None and record["protocol"] != RESPONSES:
        headers |= _sequence_headers(record, sequence_id)
    return ReplayRequest("http", method, path, headers, body)


def _is_sent(name: str, value: str) -> bool:
    """Return whether a recorded header is sent again. Raises NotReplayable: it is none that could be."""
    lowered = name.lower()
    if lowered in _NOT_SENT or lowered.startswith(_NOT_SENT_PREFIXES):
        return False
    _check_header(name, value)
    return True


def _check_header(name: str, value: str) -> None:
    if not _HEADER_NAME.fullmatch(name) or _NOT_IN_HEADERS.search(value):
        raise NotReplayable("one of its headers is none")


def _sequence_headers(record: JournalRecord, sequence_id: str) -> dict[str, str]:
    """Return the headers that name the fresh sequence, and the step. Raises NotReplayable: they would name another."""
    recorded, headers = record["sequence"], {}
    for name, value in record["sequence_headers"].items():
        _check_header(name, value)
        is_step = value in _FLAGS or name == REQUEST_ID or (name == STEP_NUMBER and value.isdecimal())
        if name.lower() in _NOT_SENT or not (is_step or value == recorded):
            raise NotReplayable("its headers name another sequence")
        headers[name] = sequence_id if value == recorded else value
    return headers


def _check_model_in_body(record: JournalRecord, headers: Mapping[str, str], body: bytes) -> None:
    """Check that a body which names the model names the recorded one, as one in another encoding might not."""
    if "content-encoding" in headers or model_in(body) not in (None, record["model"]):
        raise NotReplayable("its body calls the model by another name")


def _bytes_of(record: JournalRecord) -> bytes:
    try:
        return content_of(record["body"], record["body_form"])
    except (ValueError, TypeError, AttributeError) as error:
        raise NotReplayable(_UNREADABLE) from error


def _body_of(record: JournalRecord, headers: dict[str, str]) -> bytes:
    """Return the body; parameters become a form, of which a header tells."""
    if record["body_form"] != PARAMETERS:
        return _bytes_of(record)
    try:
        fields = [(each, content_of(each["value"], each["form"])) for each in record["body"]]
        names = [None if each["name"] is None else str(each["name"]) for each, _ in fields]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotReplayable(_UNREADABLE) from error
    if record["route"].endswith("/predict"):  # the others are in the path
        return b"".join(value for name, (_, value) in zip(names, fields, strict=True) if name is None)
    boundary = uuid.uuid4().hex
    headers["content-type"] = f"multipart/form-data; boundary={boundary}"
    pieces = [
        b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary.encode(), _field(name or "", each.get("content_type")), value)
        for name, (each, value) in zip(names, fields, strict=True)
    ]
    return b"".join((*pieces, b"--%s--\r\n" % boundary.encode()))


def _field(name: str, content_type: Any) -> bytes:
    """Return the headers of a field; one with a content type of its own needs the name of a file."""
    quoted = name.replace("\\", r"\\").replace('"', r"\"").replace("\r", "%0D").replace("\n", "%0A")
    told = f'Content-Disposition: form-data; name="{quoted}"'
    if content_type:
        _check_header("content-type", str(content_type))
        told = f'{told}; filename="file"\r\nContent-Type: {content_type}'
    return told.encode()


def _without_sequence(body: bytes, headers: dict[str, str]) -> bytes:
    """Return an Open Inference request that names no sequence: if there is a fresh one, a header names it."""
    try:
        size = int(headers.get(_LENGTH, len(body)))
        head = json.loads(body[:size])
        parameters = dict(head.get("parameters") or {})
    except (ValueError, AttributeError, TypeError, RecursionError):
        return body
    if not parameters.keys() & set(_SEQUENCE_PARAMETERS):
        return body
    head["parameters"] = {name: value for name, value in parameters.items() if name not in _SEQUENCE_PARAMETERS}
    written = json.dumps(head).encode()
    if _LENGTH in headers:
        headers[_LENGTH] = str(len(written))
    return written + body[size:]


def _call_of(
    record: JournalRecord, headers: Mapping[str, str], version: str | None, sequence_id: str | None
) -> ReplayRequest:
    """Return a call of the Open Inference service; fields that are appended to a message replace those in it."""
    metadata = {name: value for name, value in headers.items() if _fits_metadata(name, value)}
    body = _bytes_of(record)
    named = ModelInferRequest(model_name=record["model"], model_version=version or "").SerializeToString()
    added = [named] if version else [named, _NO_VERSION]
    try:
        parameters = ModelInferRequest.FromString(body).parameters
    except DecodeError as error:
        raise NotReplayable(_UNREADABLE) from error
    if ID in parameters and sequence_id is None:
        raise NotReplayable("its parameters name a sequence, and its record names none")
    if ID in parameters:
        fresh: Any = {ID: InferParameter(string_param=sequence_id)}
        added.append(ModelInferRequest(parameters=fresh).SerializeToString())
    elif sequence_id is not None:
        metadata |= _sequence_headers(record, sequence_id)
    is_stream = record["headers"].get(ENDPOINT) == "infer_stream"
    method = f"{_SERVICE}/{'ModelStreamInfer' if is_stream else 'ModelInfer'}"
    return ReplayRequest("grpc", "", method, metadata | _BARE if is_stream else metadata, b"".join((body, *added)))


def _fits_metadata(name: str, value: str) -> bool:
    return name not in _NOT_METADATA and not name.endswith("-bin") and value.isascii() and value.isprintable()
