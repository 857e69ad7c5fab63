"""What a path asks for, in Truss's interface: one endpoint, of a model that is named or is not.

    POST /v1/models/{model}:predict[_binary]   /invocations   /models/{model}/invoke
    POST /v1/chat/completions   /v1/completions   /v1/embeddings   /v1/messages   /v1/responses
    POST /hot-reload   /v1/models/{model}/hot-reload
    GET  /v1/websocket
    GET  /v1/models/{model}   /v1/models/{model}/loaded   /v1/models/{model}/schema   /v1/models/{model}/metrics
    GET  /openapi.json   /v1/models/{model}/openapi.json

A Truss's own server has one model, so most paths name none. Here each of them has a form that does, with
``/v1/models/{model}`` (or that and ``/v1``) in place of ``/v1``: the base URL to give to a client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from torchserve_py.doors.routing import Path


class Endpoint(Enum):
    """What can be asked for; the values of those that run the model are the worker's names for them."""

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

    @property
    def method(self) -> str:
        """The one method that it is for."""
        return "GET" if self in _READING else "POST"


_READING: Final = frozenset(
    {Endpoint.websocket, Endpoint.metrics, Endpoint.ready, Endpoint.loaded, Endpoint.schema, Endpoint.openapi},
)
#: Where the methods are that have endpoints of their own, below ``/v1``.
ALIASES: Final[Mapping[Path, Endpoint]] = {
    ("chat", "completions"): Endpoint.chat_completions,
    ("completions",): Endpoint.completions,
    ("embeddings",): Endpoint.embeddings,
    ("messages",): Endpoint.messages,
    ("responses",): Endpoint.responses,
}
#: Those that run the model on a body.
RUNNING: Final = frozenset((Endpoint.predict, *ALIASES.values()))
_BY_PATH: Final[Mapping[Path, Endpoint]] = {**ALIASES, ("websocket",): Endpoint.websocket}
_OF_A_MODEL: Final[Mapping[Path, Endpoint]] = {
    **_BY_PATH,
    (): Endpoint.ready,
    ("loaded",): Endpoint.loaded,
    ("schema",): Endpoint.schema,
    ("metrics",): Endpoint.metrics,
    ("hot-reload",): Endpoint.hot_reload,
    ("openapi.json",): Endpoint.openapi,
}
_PREDICT_SUFFIXES: Final = (":predict", ":predict_binary")


class Target(NamedTuple):
    """An endpoint, and the name of its model if the path has one."""

    model: str | None
    endpoint: Endpoint

    @property
    def is_shared(self) -> bool:
        """Whether models of other contracts have such a path, too."""
        return self.endpoint is Endpoint.predict


@lru_cache(maxsize=1024)
def target_of(path: Path) -> Target | None:
    """What a path asks for, None if that is nothing of Truss's."""
    match path:
        case ("invocations",):
            return Target(None, Endpoint.predict)
        case ("hot-reload",):
            return Target(None, Endpoint.hot_reload)
        case ("openapi.json",):
            return Target(None, Endpoint.openapi)
        case ("models", name, "invoke"):
            return Target(name, Endpoint.predict)
        case ("v1", "models", name) if name.endswith(_PREDICT_SUFFIXES):
            return Target(name.rpartition(":")[0], Endpoint.predict)
        case ("v1", "models", name, *rest):
            endpoint = _OF_A_MODEL.get(tuple(rest)) or _BY_PATH.get(tuple(rest[1:]) if rest[0] == "v1" else ())
            return endpoint and Target(name, endpoint)
        case ("v1", *rest):
            endpoint = _BY_PATH.get(tuple(rest))
            return endpoint and Target(None, endpoint)
    return None
