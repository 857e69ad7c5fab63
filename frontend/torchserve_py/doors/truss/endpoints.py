"""The endpoints of Truss's interface, and their paths.

A Truss's own server has one model, and most of its paths do not name the model. Here each such path has a second form
with ``/v1/models/{model}`` or ``/v1/models/{model}/v1`` instead of ``/v1``, the base URL for a client library.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final


class Endpoint(Enum):
    """What clients can ask for; the worker has the same names for the endpoints that run the model."""

    predict = "predict"
    chat_completions = "chat_completions"
    completions = "completions"
    embeddings = "embeddings"
    messages = "messages"
    responses = "responses"
    websocket = "websocket"
    metrics = "metrics"
    hot_reload = "hot_reload"
    ready = "ready"
    loaded = "loaded"
    schema = "schema"
    openapi = "openapi"


_READING: Final = frozenset(
    {Endpoint.websocket, Endpoint.metrics, Endpoint.ready, Endpoint.loaded, Endpoint.schema, Endpoint.openapi}
)
#: The paths of the methods that have endpoints of their own, below ``/v1``.
ALIASES: Final[Mapping[str, Endpoint]] = {
    "/chat/completions": Endpoint.chat_completions,
    "/completions": Endpoint.completions,
    "/embeddings": Endpoint.embeddings,
    "/messages": Endpoint.messages,
    "/responses": Endpoint.responses,
}
_MODEL: Final = "/v1/models/{model_name}"
_BELOW_V1: Final = {**ALIASES, "/websocket": Endpoint.websocket}
#: The patterns of the paths, each with its endpoint.
PATHS: Final[Sequence[tuple[str, Endpoint]]] = (
    (f"{_MODEL}:predict", Endpoint.predict),
    (f"{_MODEL}:predict_binary", Endpoint.predict),
    ("/invocations", Endpoint.predict),
    ("/models/{model_name}/invoke", Endpoint.predict),
    *((f"{base}{path}", endpoint) for base in ("/v1", _MODEL, f"{_MODEL}/v1") for path, endpoint in _BELOW_V1.items()),
    ("/hot-reload", Endpoint.hot_reload),
    (f"{_MODEL}/hot-reload", Endpoint.hot_reload),
    (_MODEL, Endpoint.ready),
    (f"{_MODEL}/loaded", Endpoint.loaded),
    (f"{_MODEL}/schema", Endpoint.schema),
    (f"{_MODEL}/metrics", Endpoint.metrics),
    ("/openapi.json", Endpoint.openapi),
    (f"{_MODEL}/openapi.json", Endpoint.openapi),
)


def method_of(endpoint: Endpoint) -> str:
    """Return the one method of an endpoint."""
    return "GET" if endpoint in _READING else "POST"
