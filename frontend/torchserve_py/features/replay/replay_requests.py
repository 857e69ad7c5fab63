"""Makes the request that sends a record of a journal again, to another version of its model.

Requests go to the door where they came, or to one that means the same and can name a version. Requests over gRPC with
TorchServe's messages, the steps of live sessions and what nodes of workflows got go to TorchServe's path over HTTP: the
model gets the same.
"""

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from google.protobuf.message import DecodeError

from torchserve_py.features.journal.journal_record import PARAMETERS, JournalRecord, content_of
from torchserve_py.features.open_inference.sequence_parameters import ID
from torchserve_py.jobs.inference_request import VERSION_HEADER
from ts.features.open_inference.protos.infer_pb2 import InferParameter, ModelInferRequest
from ts.protocol.messages import CUSTOM, OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST, OPENPI, TRUSS

#: Calls of OpenAI's Responses and Conversations, as `ts.features.openai.openai_calls` names them.
RESPONSES: Final = "openai_responses"
#: What of the recorded headers is not sent: the server's own, and those of the recorded connection.
_NOT_SENT: Final = frozenset(("url_path", "explain", "traceparent", "user-agent"))
_ENDPOINT: Final = ":endpoint"
_LENGTH: Final = "inference-header-content-length"
_SEQUENCE_PARAMETERS: Final = (ID, "sequence_start", "sequence_end")
#: What of the recorded headers metadata of gRPC cannot have.
_NOT_METADATA: Final = frozenset(("content-type", "content-encoding", "te"))
#: Metadata by which a stream has the model's messages without an envelope.
_BARE: Final = {"x-stream-envelope": "mlserver"}
_SERVICE: Final = "/inference.GRPCInferenceService"
_UNREADABLE: Final = "its body cannot be read"
_NO_VERSION: Final = b"\x12\x00"


class NotReplayable(Exception):
    """A record cannot be sent again; the message says why, in the same words for all records of its kind."""


class ReplayRequest(NamedTuple):
    """A request to a door of a server.

    Attributes:
        door: ``http``, ``grpc`` for a call with one message, or ``openpi`` for a message to a socket.
        method: Of HTTP.
        path: Of HTTP, of a call, or of the socket.
        headers: Or metadata.
        body: Or the message.
    """

    door: Literal["http", "grpc", "openpi"]
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
    headers = {name: value for name, value in record["headers"].items() if _is_sent(name)}
    match record["protocol"]:
        case str(protocol) if protocol == OPEN_INFERENCE_GRPC:
            return _call_of(record, headers, version, sequence_id)
        case str(protocol) if protocol == OPENPI:
            return ReplayRequest("openpi", "GET", f"/openpi/{_names(record, version)}", headers, _bytes_of(record))
    if record["content_type"]:
        headers["content-type"] = record["content_type"]
    path, body = _path_of(record, version, headers), _body_of(record, headers)
    if record["protocol"] == OPEN_INFERENCE_REST:
        headers.pop("content-encoding", None)
        if sequence_id is not None:
            body = _without_sequence(body, headers)
    if sequence_id is not None and record["protocol"] != RESPONSES:
        headers |= _sequence_headers(record, sequence_id)
    return ReplayRequest("http", record["method"] if record["via"] == "http" else "POST", path, headers, body)


def _is_sent(name: str) -> bool:
    return name not in _NOT_SENT and not name.startswith(":")


def _names(record: JournalRecord, version: str | None) -> str:
    name = quote(record["model"], safe="")
    return name if version is None else f"{name}/{quote(version, safe='')}"


def _sequence_headers(record: JournalRecord, sequence_id: str) -> dict[str, str]:
    recorded = record["sequence"]
    return {name: sequence_id if value == recorded else value for name, value in record["sequence_headers"].items()}


def _path_of(record: JournalRecord, version: str | None, headers: dict[str, str]) -> str:
    """Return the path; where it cannot name the version, a header does."""
    protocol, route, recorded = record["protocol"], record["route"], record["headers"]
    if protocol == OPEN_INFERENCE_REST:
        name, _, of_version = _names(record, version).partition("/")
        in_path = f"/versions/{of_version}" if of_version else ""
        return f"/v2/models/{name}{in_path}/{recorded.get(_ENDPOINT, 'infer')}"
    if protocol in (TRUSS, CUSTOM, RESPONSES) and record["via"] == "http":
        if version is not None:
            headers[VERSION_HEADER] = version
        return record["path"]
    if protocol is not None:
        raise NotReplayable(f"its protocol needs a connection of its own ({protocol}, {record['via']})")
    if route.endswith("/predict"):
        query = record["path"].partition("?")[2]
        return f"/{_names(record, version)}/predict" + (f"?{query}" if query else "")
    rest = recorded.get("url_path", "")
    if rest and version is None:
        if "{model_version}" in route:
            raise NotReplayable("its path names a version; name one with --model")
        return record["path"]
    base = "explanations" if recorded.get("explain") == "True" else "predictions"
    return f"/{base}/{_names(record, version)}" + (f"/{rest}" if rest else "")


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
    except (ValueError, TypeError, KeyError) as error:
        raise NotReplayable(_UNREADABLE) from error
    if record["route"].endswith("/predict"):  # the others are in the path
        return b"".join(value for each, value in fields if each["name"] is None)
    boundary = uuid.uuid4().hex
    headers["content-type"] = f"multipart/form-data; boundary={boundary}"
    pieces = [b"--%s\r\n%s\r\n\r\n%s\r\n" % (boundary.encode(), _field(each), value) for each, value in fields]
    return b"".join((*pieces, b"--%s--\r\n" % boundary.encode()))


def _field(field: Mapping[str, Any]) -> bytes:
    """Return the headers of a field; one with a content type of its own needs the name of a file."""
    name = field["name"].replace("\\", r"\\").replace('"', r"\"")
    told = f'Content-Disposition: form-data; name="{name}"'
    if field["content_type"]:
        told = f'{told}; filename="file"\r\nContent-Type: {field["content_type"]}'
    return told.encode()


def _without_sequence(body: bytes, headers: dict[str, str]) -> bytes:
    """Return an Open Inference request that does not name its sequence: a header names the fresh one."""
    try:
        size = int(headers.get(_LENGTH, len(body)))
        head = json.loads(body[:size])
        parameters = dict(head.get("parameters") or {})
    except (ValueError, AttributeError, TypeError):
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
    added = [ModelInferRequest(model_version=version).SerializeToString() if version else _NO_VERSION]
    try:
        parameters = ModelInferRequest.FromString(body).parameters
    except DecodeError as error:
        raise NotReplayable(_UNREADABLE) from error
    if sequence_id is not None:
        if ID in parameters:
            named: Any = {ID: InferParameter(string_param=sequence_id)}
            added.append(ModelInferRequest(parameters=named).SerializeToString())
        else:
            metadata |= _sequence_headers(record, sequence_id)
    is_stream = record["headers"].get(_ENDPOINT) == "infer_stream"
    method = f"{_SERVICE}/{'ModelStreamInfer' if is_stream else 'ModelInfer'}"
    return ReplayRequest("grpc", "", method, metadata | _BARE if is_stream else metadata, b"".join((body, *added)))


def _fits_metadata(name: str, value: str) -> bool:
    return name not in _NOT_METADATA and not name.endswith("-bin") and value.isascii() and value.isprintable()
