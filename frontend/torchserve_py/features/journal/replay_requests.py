"""Makes the request that sends a record of a journal again, to another version of its model.

Requests over HTTP go to the path where they came, or to the one that means the same and can name a version. Requests
over gRPC with TorchServe's messages, and the steps of live sessions, go to TorchServe's path over HTTP: the model gets
the same.
"""

import json
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

import aiohttp

from torchserve_py.features.journal.journal_record import PARAMETERS, JournalRecord, content_of
from ts.protocol.messages import OPEN_INFERENCE_REST

#: What of the recorded headers is not sent: the server's own, and those of the recorded connection.
_NOT_SENT: Final = frozenset(("url_path", "explain", "traceparent", "user-agent"))
_ENDPOINT: Final = ":endpoint"
_LENGTH: Final = "inference-header-content-length"
#: The beginnings of OpenAI's paths whose requests name what the server has made in answers before.
_WITH_IDS_OF_THE_SERVER: Final = ("v1/responses", "v1/conversations")
_SEQUENCE_PARAMETERS: Final = ("sequence_id", "sequence_start", "sequence_end")


class NotReplayable(Exception):
    """A record cannot be sent again; the message says why, in the same words for all records of its kind."""


class ReplayRequest(NamedTuple):
    """A request over HTTP; the body is bytes or a form."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | aiohttp.FormData


def request_of(record: JournalRecord, version: str | None, sequence_id: str | None) -> ReplayRequest:
    """Return the request of a record for a version of its model, None for the default one.

    ``sequence_id`` stands for the recorded id of its sequence. Raises NotReplayable.
    """
    if record["body_cut"]:
        raise NotReplayable("its body was cut (maxBodyBytes)")
    if record["more_input"]:
        raise NotReplayable("its call has several inputs")
    headers = {name: value for name, value in record["headers"].items() if _is_sent(name)}
    if record["content_type"]:
        headers["content-type"] = record["content_type"]
    path, body = _path_of(record, version), _body_of(record)
    if record["protocol"] == OPEN_INFERENCE_REST:
        headers.pop("content-encoding", None)
        if sequence_id is not None and isinstance(body, bytes):
            body = _without_sequence(body, headers)
    if isinstance(body, aiohttp.FormData):
        headers.pop("content-type", None)
    if sequence_id is not None:
        recorded = record["sequence"]
        for name, value in record["sequence_headers"].items():
            headers[name] = sequence_id if value == recorded else value
    return ReplayRequest(record["method"] if record["via"] == "http" else "POST", path, headers, body)


def _is_sent(name: str) -> bool:
    return name not in _NOT_SENT and not name.startswith(":")


def _path_of(record: JournalRecord, version: str | None) -> str:
    protocol, via, route, headers = record["protocol"], record["via"], record["route"], record["headers"]
    name, of_version = quote(record["model"], safe=""), "" if version is None else f"/{quote(version, safe='')}"
    if via == "workflow":
        raise NotReplayable("it ran inside of a workflow")
    if protocol == OPEN_INFERENCE_REST and via == "http":
        in_path = "" if version is None else f"/versions{of_version}"
        return f"/v2/models/{name}{in_path}/{headers.get(_ENDPOINT, 'infer')}"
    if protocol is not None:
        if via == "http" and version is None:
            return str(record["path"])
        what = "its protocol needs a connection of its own" if via != "http" else "its path cannot name a version"
        raise NotReplayable(f"{what} ({protocol}, {via})")
    if route.endswith("/predict"):
        query = record["path"].partition("?")[2]
        return f"/{name}{of_version}/predict" + (f"?{query}" if query else "")
    rest = headers.get("url_path", "")
    if rest.startswith(_WITH_IDS_OF_THE_SERVER):
        raise NotReplayable("it may name responses or conversations that the server has made")
    if rest and version is None:
        if "{model_version}" in route:
            raise NotReplayable("its path names a version; name one with --model")
        return str(record["path"])
    base = "explanations" if headers.get("explain") == "True" else "predictions"
    return f"/{base}/{name}{of_version}" + (f"/{rest}" if rest else "")


def _body_of(record: JournalRecord) -> bytes | aiohttp.FormData:
    try:
        if record["body_form"] != PARAMETERS:
            return content_of(record["body"], record["body_form"])
        fields = [(each, content_of(each["value"], each["form"])) for each in record["body"]]
    except ValueError as error:
        raise NotReplayable("its body cannot be read") from error
    if record["route"].endswith("/predict"):  # the others are in the path
        return b"".join(value for each, value in fields if each["name"] is None)
    form = aiohttp.FormData(default_to_multipart=True)
    for each, value in fields:
        form.add_field(each["name"], value, content_type=each["content_type"] or "application/octet-stream")
    return form


def _without_sequence(body: bytes, headers: dict[str, str]) -> bytes:
    """Return an Open Inference request that does not name its sequence: a header names the fresh one."""
    size = int(headers.get(_LENGTH, len(body)))
    try:
        head = json.loads(body[:size])
        parameters = head.get("parameters") or {}
    except (ValueError, AttributeError):
        return body
    if not parameters.keys() & set(_SEQUENCE_PARAMETERS):
        return body
    head["parameters"] = {name: value for name, value in parameters.items() if name not in _SEQUENCE_PARAMETERS}
    written = json.dumps(head).encode()
    if _LENGTH in headers:
        headers[_LENGTH] = str(len(written))
    return written + body[size:]
