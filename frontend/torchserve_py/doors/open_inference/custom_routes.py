"""Routes that models declare: the custom handlers of MLServer models.

A route exists while its model is loaded. The worker gets the raw request and makes the answer.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from torchserve_py.core.serving import ServedModel
from torchserve_py.doors import priorities
from torchserve_py.doors.failures import bad_request, method_not_allowed
from torchserve_py.doors.open_inference.rest_dialect import CUSTOM_DIALECT
from torchserve_py.doors.path_templates import PathTemplate, read_template, shown
from torchserve_py.doors.pipeline import HttpExchange
from torchserve_py.doors.requests import request_line
from torchserve_py.doors.routing import DoorContext, Reply
from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.transport.http1.request import Request
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


class CustomRoute(NamedTuple):
    """The route of a request; ``endpoint`` is None if the path has only the methods in ``allowed``."""

    model: ServedModel
    endpoint: str | None
    allowed: str


class CustomRoutes:
    """Finds the models' own routes and runs requests on them."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        #: Each model's declaration, and the routes read from the declaration.
        self._read: WeakKeyDictionary[ServedModel, tuple[Any, tuple[DeclaredRoute, ...]]] = WeakKeyDictionary()

    def exist(self) -> bool:
        """Return whether any model has declared paths now."""
        return any(map(self._routes_of, self._models()))

    def find(self, request: Request) -> CustomRoute | None:
        """Return the route of a request, or None if no model declares the path.

        Raises DoorError: several models have the path, and the query's ``model_name`` is not one of them.
        """
        found, others = self._all(request)
        if len(found) > 1:
            return self._named(request, found) or _refuse(found)
        return next(iter(found or others), None)

    def find_instead(self, request: Request, *, refuses: bool) -> CustomRoute | None:
        """Return a model's route for a path that the server has too, or None if the server answers.

        The server answers if no model declares the path, or if the query names a model without such a route; and,
        unless ``refuses``, if several models declare the path. Raises DoorError: several models have the path, and the
        query's ``model_name`` is not one of them.
        """
        found, _ = self._all(request)
        if found and request.parameter(_MODEL_NAME):
            return self._named(request, found)
        if len(found) > 1:
            return _refuse(found) if refuses else None
        return next(iter(found), None)

    def _models(self) -> Iterator[ServedModel]:
        return (model for model in self._serving.models() if model.contract.own_routes)

    def _all(self, request: Request) -> tuple[list[CustomRoute], list[CustomRoute]]:
        """Return the routes of a request's path: one of each model for its method, and those for other methods."""
        path = segments_of(request.target)
        found: list[CustomRoute] = []
        others: list[CustomRoute] = []
        for model in self._models():
            for route in self._routes_of(model):
                if route.template.match(path) is not None:
                    if request.method in route.methods:
                        found.append(CustomRoute(model, route.endpoint, ""))
                        break
                    others.append(CustomRoute(model, None, ", ".join(route.methods)))
        return found, others

    def _named(self, request: Request, found: Sequence[CustomRoute]) -> CustomRoute | None:
        wanted = request.parameter(_MODEL_NAME)
        return next((route for route in found if route.model.name == wanted), None)

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

    def run(self, request: Request, route: CustomRoute) -> Reply:
        """Run a request on a route."""
        endpoint = route.endpoint
        if endpoint is None:
            raise method_not_allowed(route.allowed)

        def submit(body: bytes) -> HttpExchange:
            inference = InferenceRequest(
                request.raw_headers + request_line(request, endpoint),
                body,
                request.headers.get("Content-Type"),
                CUSTOM,
                by_default=True,
                priority=priorities.of_request(request),
                unbatched=route.model.is_stateful,
            )
            return self._context.submit(request, CUSTOM_DIALECT, route.model, inference)

        return submit


def _refuse(found: Sequence[CustomRoute]) -> NoReturn:
    names = ", ".join(route.model.name for route in found)
    raise bad_request(
        f"Several models have this path ({names}): name one of them in the query, as in"
        f" ?{_MODEL_NAME}={found[0].model.name}."
    )


def segments_of(target: str) -> list[str]:
    """Return the segments of a request target, percent-decoded one by one."""
    return [unquote(segment) for segment in target.partition("?")[0].split("/")]


def read_routes(declared: Any) -> tuple[DeclaredRoute, ...]:
    """Read the routes that a worker declares: a list of ``[path, methods, endpoint]``, or None.

    Raises ValueError: the declaration is malformed; the message names the entry and what would be right.
    """
    if declared is None:
        return ()
    if not isinstance(declared, (list, tuple)) or len(declared) > _MAX_ROUTES:
        raise ValueError(f"its routes must be a list of up to {_MAX_ROUTES} entries, they are {shown(declared)}")
    return tuple(map(_route, declared))


def _route(declared: Any) -> DeclaredRoute:
    match declared:
        case [str() as path, [*methods], str() as endpoint] if methods and all(map(_is_method, methods)):
            return DeclaredRoute(read_template(path), tuple(methods), endpoint)
    raise ValueError(f"a route must be a path, a list of methods and a name, it is {shown(declared)}")


def _is_method(value: Any) -> bool:
    return isinstance(value, str) and _METHOD.fullmatch(value) is not None
