"""Routes that models declare: the custom handlers of MLServer models.

A route exists while its model is loaded. The worker gets the raw request and makes the answer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from torchserve_py.apis.open_inference.rest_dialect import CUSTOM_DIALECT
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall
from torchserve_py.endpoints.content_encodings import GZIP, decompressed, encoding_of
from torchserve_py.endpoints.failures import bad_request, method_not_allowed
from torchserve_py.endpoints.model_index import ModelIndex
from torchserve_py.endpoints.path_templates import PathTemplate, read_template, shown
from torchserve_py.endpoints.requests import request_line
from torchserve_py.endpoints.routing import EndpointContext, Reply
from torchserve_py.net.http1.request import Request
from ts.protocol.messages import CUSTOM

logger = logging.getLogger(__name__)

_MODEL_NAME: Final = "model_name"
_MAX_ROUTES: Final = 1000
_METHOD: Final = re.compile(r"[A-Z]{1,20}")


class DeclaredRoute(NamedTuple):
    """A path that a model declares, its methods, and the worker's name for the route."""

    template: PathTemplate
    methods: tuple[str, ...]
    endpoint: str


class CustomRoutes:
    """Finds the models' own routes and runs requests on them."""

    def __init__(self, context: EndpointContext) -> None:
        self._context = context
        self._serving = context.serving
        #: Those that may have routes of their own.
        self._models = ModelIndex(
            self._serving, lambda models: tuple(model for model in models if model.contract.own_routes)
        )
        #: Each model's declaration, and the routes read from the declaration.
        self._read: WeakKeyDictionary[ServedModel, tuple[Any, tuple[DeclaredRoute, ...]]] = WeakKeyDictionary()

    def exist(self) -> bool:
        """Return whether any model has declared paths now."""
        return any(map(self._routes_of, self._models.get()))

    def declares(self, request: Request) -> bool:
        """Return whether a model declares the request's path and method."""
        return bool(self._declared(request)[0])

    def serve(self, request: Request) -> Reply | None:
        """Run a request on the model that declares its path; return None if no model does.

        Raises EndpointError: the path has other methods; several models have it, and the query names none of them.
        """
        found, others = self._declared(request)
        if others and not found:
            raise method_not_allowed(", ".join(others))
        return self._run(request, found)

    def serve_instead(self, request: Request, *, refuses: bool) -> Reply | None:
        """Run a request for a path of the server on the model that declares the path; return None if none does.

        The server answers, too, if the query names a model without such a route; and, unless ``refuses``, if several
        models declare the path. Raises EndpointError: several models have the path, and the query names none of them.
        """
        found, _ = self._declared(request)
        if wanted := request.parameter(_MODEL_NAME):
            found = {model: route for model, route in found.items() if model.name == wanted}
        elif len(found) > 1 and not refuses:
            return None
        return self._run(request, found)

    def _declared(self, request: Request) -> tuple[Mapping[ServedModel, str], Collection[str]]:
        """Return the endpoints that models declare for a request, and the other methods that its path has."""
        path, others = decoded_path(request.target), dict[str, None]()
        found: dict[ServedModel, str] = {}
        for model in self._models.get():
            for route in self._routes_of(model):
                if route.template.match(path) is None:
                    continue
                if request.method in route.methods:
                    found[model] = route.endpoint
                    break
                others |= dict.fromkeys(route.methods)
        return found, others

    def _routes_of(self, model: ServedModel) -> Sequence[DeclaredRoute]:
        declared = self._serving.declared(model).get("routes")
        known = self._read.get(model)
        if known is not None and known[0] is declared:
            return known[1]
        try:
            routes = read_routes(declared)
        except ValueError as error:
            logger.warning("No path of model %s's own is served: %s", model.name, error)
            routes = ()
        self._read[model] = declared, routes
        return routes

    def _run(self, request: Request, found: Mapping[ServedModel, str]) -> Reply | None:
        if not found:
            return None
        models, wanted = list(found), request.parameter(_MODEL_NAME)
        model = next((each for each in models if each.name == wanted), models[0])
        if len(models) > 1 and model.name != wanted:
            raise bad_request(
                f"Several models have this path ({', '.join(each.name for each in models)}): name one of them in the"
                f" query, as in ?{_MODEL_NAME}={model.name}."
            )

        def submit(body: bytes) -> HttpCall:
            line = request_line(request, found[model])
            call = self._context.call_of(request, CUSTOM_DIALECT, model, line, CUSTOM)
            call.unbatched = model.is_stateful
            return self._context.submit(call, body)

        if encoding_of(request) != GZIP:
            return submit  # MLServer undoes no other encoding: what the model's own code undoes stays as it is

        async def submit_compressed(body: bytes) -> HttpCall:
            return submit(await decompressed(request, body, self._context.settings.max_request_size))

        return submit_compressed


def decoded_path(target: str) -> str:
    """Return the path of a request target; an encoded slash separates no segments, and stays encoded."""
    segments = target.partition("?")[0].split("/")
    return "/".join(unquote(segment).replace("/", "%2F") for segment in segments)


def read_routes(declared: Any) -> tuple[DeclaredRoute, ...]:
    """Read the routes that a worker declares: a list of ``[path, methods, endpoint]``, or None.

    Raises ValueError: the declaration is malformed; the message names the entry and what would be right.
    """
    if declared is None:
        return ()
    if not isinstance(declared, (list, tuple)) or len(declared) > _MAX_ROUTES:
        raise ValueError(f"its routes must be a list of up to {_MAX_ROUTES} entries, they are {shown(declared)}")
    routes = []
    for route in declared:
        match route:
            case [str() as path, [_, *_] as methods, str() as endpoint] if all(
                map(_METHOD.fullmatch, map(str, methods))
            ):
                routes.append(DeclaredRoute(read_template(path), tuple(methods), endpoint))
            case _:
                raise ValueError(f"a route must be a path, a list of methods and a name, it is {shown(route)}")
    return tuple(routes)
