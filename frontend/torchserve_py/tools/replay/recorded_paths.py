"""The target of a recorded request, as data: whatever a client wrote, it leads to the model that the record is of.

Paths are built anew where they can be. Where the recorded one is needed, it must be one of the paths that its protocol
has, and each of its segments is quoted. A key of the operator's may open more than the client's did.
"""

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, unquote

from torchserve_py.contracts.truss.endpoints import DEPLOYED_PATHS, DEPLOYMENTS, PATHS, READING
from torchserve_py.core.jobs.call import VERSION_HEADER
from torchserve_py.endpoints.path_templates import read_template
from torchserve_py.endpoints.routing import ANY_METHOD
from torchserve_py.tools.journal.journal_record import JournalRecord
from ts.protocol.messages import CUSTOM, OPEN_INFERENCE_REST, SAGEMAKER_CLOSE, TRUSS

#: Calls of OpenAI's Responses and Conversations, as `ts.apis.openai.openai_calls` names them.
RESPONSES: Final = "openai_responses"
#: The header with the endpoint of the Open Inference Protocol, and the endpoints.
ENDPOINT: Final = ":endpoint"
_ENDPOINTS: Final = frozenset(("infer", "infer_stream", "generate", "generate_stream"))
#: OpenAI's paths whose body names the model.
NAMED_IN_BODY: Final = frozenset(("v1/completions", "v1/chat/completions", "v1/embeddings"))
#: The first segments of the paths that are the server's own, on any of its listeners: none of them is a model's.
OWN_SEGMENTS: Final = frozenset(
    (
        *("", "api-description", "console", "deployment", "development", "docs", "drain", "environments"),
        *("execution-parameters", "explanations", "favicon.ico", "health", "healthz", "hot-reload", "invocations"),
        *("invocations-bidirectional-stream", "live", "metrics", "models", "openapi.json", "openpi", "ping"),
        *("predictions", "production", "ready", "sequences", "token", "v1", "v2", "wfpredict", "workflows"),
    )
)
#: The paths of Trusses, and how each is called.
_OF_TRUSS: Final = tuple(
    (read_template(path), "GET" if endpoint in READING else "POST")
    for path, endpoint in (*PATHS, *((f"{base}{path}", each) for base in DEPLOYMENTS for path, each in DEPLOYED_PATHS))
)
_RESPONSE_METHODS: Final = frozenset(("GET", "POST", "DELETE"))
_OF_RESPONSES: Final = (["v1", "responses"], ["v1", "conversations"])
#: What a segment, and a query, may have without being encoded.
_IN_SEGMENT: Final = "!$&'()*+,;=:@~"
_IN_QUERY: Final = f"{_IN_SEGMENT}/?%"
#: How often proxies on the way might decode a path.
_DECODINGS: Final = 4
_BETWEEN: Final = re.compile(r"[/\\]")
#: What proxies take for a step up or none, with or without parameters behind a semicolon.
_DOTS: Final = re.compile(r"\.\.?(?:;.*)?", re.DOTALL)
_LEAVES: Final = "its path leads out of its route"
_NOT_OF_ROUTE: Final = "its method and path are none of its protocol"


class NotReplayable(Exception):
    """A record cannot be sent again; the message says why, in the same words for all records of its kind."""


def names_of(record: JournalRecord, version: str | None) -> str:
    """Return the model's name, and the version if there is one, as segments of a path. Raises NotReplayable."""
    name = _joined([record["model"]])
    return name if version is None else f"{name}/{quote(version, safe='')}"


def target_of(record: JournalRecord, version: str | None, headers: dict[str, str]) -> tuple[str, str]:
    """Return the method and the path of a request over HTTP; where the path cannot name the version, a header does.

    Raises NotReplayable: they would lead elsewhere.
    """
    protocol, method = record["protocol"], record["method"] if record["via"] == "http" else "POST"
    if protocol == OPEN_INFERENCE_REST:
        endpoint = record["headers"].get(ENDPOINT, "infer")
        if endpoint not in _ENDPOINTS:
            raise NotReplayable(_NOT_OF_ROUTE)
        name, _, of_version = names_of(record, version).partition("/")
        in_path = f"/versions/{of_version}" if of_version else ""
        return "POST", f"/v2/models/{name}{in_path}/{endpoint}"
    if protocol in (TRUSS, CUSTOM, RESPONSES) and record["via"] == "http":
        segments, query = _parts(record["path"])
        if not _is_of_protocol(record, method, segments):
            raise NotReplayable(_NOT_OF_ROUTE)
        if version is not None:
            headers[VERSION_HEADER] = version
        return method, f"/{_joined(segments)}{query}"
    if protocol == SAGEMAKER_CLOSE:
        raise NotReplayable("it only closes a session of SageMaker's")
    if protocol is not None:
        raise NotReplayable(f"its protocol needs a connection of its own ({protocol}, {record['via']})")
    if method not in ANY_METHOD:
        raise NotReplayable(_NOT_OF_ROUTE)
    return method, _prediction(record, version)


def _prediction(record: JournalRecord, version: str | None) -> str:
    route, recorded = record["route"], record["headers"]
    if route.endswith("/predict"):
        return f"/{names_of(record, version)}/predict{_parts(record['path'])[1]}"
    rest = recorded.get("url_path", "")
    if rest and version is None:
        if rest not in NAMED_IN_BODY or "{model_version}" in route:
            raise NotReplayable("its path names a version; name one with --model")
        return f"/{rest}"
    base = "explanations" if recorded.get("explain") == "True" else "predictions"
    return f"/{base}/{names_of(record, version)}" + (f"/{_joined(rest.split('/'))}" if rest else "")


def _is_of_protocol(record: JournalRecord, method: str, segments: list[str]) -> bool:
    """Return whether a method and a path are of the recorded protocol, and of the recorded model if they name one."""
    match record["protocol"]:
        case str(protocol) if protocol == RESPONSES:
            return method in _RESPONSE_METHODS and segments[:2] in _OF_RESPONSES
        case str(protocol) if protocol == CUSTOM:
            return method in ANY_METHOD and _BETWEEN.split(segments[0])[0] not in OWN_SEGMENTS
    path = "/" + "/".join(each.replace("/", "%2F") for each in segments)
    found = (template.match(path) for template, called in _OF_TRUSS if called == method)
    return any(each is not None and each.get("model_name", record["model"]) == record["model"] for each in found)


def _parts(target: str) -> tuple[list[str], str]:
    """Return the segments of a recorded path, decoded, and its query with the mark before it. Raises NotReplayable."""
    path, mark, query = target.partition("?")
    if not path.startswith("/"):
        raise NotReplayable(_LEAVES)
    return [unquote(each, errors="surrogateescape") for each in path[1:].split("/")], mark + quote(query, _IN_QUERY)


def _joined(segments: list[str]) -> str:
    """Return segments, which are decoded, as a path. Raises NotReplayable: one of them leads out of it."""
    if any(_DOTS.fullmatch(part) for each in segments for text in _decoded(each) for part in _BETWEEN.split(text)):
        raise NotReplayable(_LEAVES)
    return "/".join(quote(each, _IN_SEGMENT, errors="surrogateescape") for each in segments)


def _decoded(segment: str) -> Iterator[Any]:
    for _ in range(_DECODINGS):
        yield segment
        segment = unquote(segment, errors="surrogateescape")
