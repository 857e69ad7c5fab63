"""The endpoint of the console: the page, what it shows live, and requests to models that the page sends.

All but the page need the management key. The page changes models over the management API.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from torchserve_py.apis.live.live_session_endpoints import LiveSessionEndpoints
from torchserve_py.apis.open_inference.stored_models import StoredModels
from torchserve_py.base.url_secrets import without_secrets
from torchserve_py.core.jobs.parts import Part
from torchserve_py.core.serving.model_activity import SequenceOrder
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.client_call import HttpCall, TorchServeDialect
from torchserve_py.endpoints.failures import Failure, bad_request, not_found
from torchserve_py.endpoints.page_files import TYPES, page_files
from torchserve_py.endpoints.predictions import InferenceEndpoints
from torchserve_py.endpoints.responses import Answer, json_answer
from torchserve_py.endpoints.routing import READING, EndpointContext, Endpoints, PathValues, Reply, Route
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.net.http1.request import Request
from torchserve_py.tools.console.console_settings import ConsoleSettings
from torchserve_py.tools.console.finished_jobs import FinishedJobs
from torchserve_py.tools.console.live_views import API, LiveViews
from torchserve_py.tools.console.sampler import Sampler
from torchserve_py.tools.console.tracebacks import Tracebacks
from torchserve_py.tools.console.worker_tails import WorkerTails

_VERSION: Final = "{model_name}/{model_version}"
_MANAGEMENT: Final = TokenType.management
#: The most sequences in one answer.
_MOST_SEQUENCES: Final = 200
#: The most locations that are proposed for a registration.
_MOST_LOCATIONS: Final = 500
_FOLDER: Final = Path(__file__).parent / "page"
#: Files of the page that lie elsewhere in the package, by the name under which the page has them.
_FOREIGN: Final = {"live-session.js": Path(__file__).parents[2] / "client" / "live-session.js"}
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "worker-src 'self'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
#: What the browser may do with the page: nothing from elsewhere, no inline code, no frame around it.
HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("permissions-policy", "microphone=(self), camera=(), geolocation=()"),
)

#: With these headers an answer of a model, which may be HTML, runs no scripts and is taken for nothing else.
_CONFINED: Final = (("content-security-policy", "sandbox"), ("x-content-type-options", "nosniff"))


class _ConfinedDialect(TorchServeDialect):
    """Whatever a model answers is no page of the console's origin, where a script could use the management key."""

    def answer(self, call: HttpCall, part: Part) -> Answer:
        return _confined(super().answer(call, part))

    def opening(self, call: HttpCall, first: Part) -> Answer:
        return _confined(super().opening(call, first))

    def failure(self, failure: Failure, call: HttpCall | None = None) -> Answer:
        return _confined(super().failure(failure, call))


def _confined(answer: Answer) -> Answer:
    names = [name for name, _ in _CONFINED]
    return answer._replace(headers=(*(pair for pair in answer.headers if pair[0].lower() not in names), *_CONFINED))


class ConsoleEndpoints(Endpoints):
    """Shows the page and feeds it."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        if not self.settings.of(ConsoleSettings).enable_console:
            return
        self._files = page_answers()
        sampler, tails, tracebacks = Sampler(context.serving), WorkerTails(), Tracebacks()
        tails.attach()
        tracebacks.attach()
        self._finished = FinishedJobs()
        context.metrics.followers.append(self._finished.follow)
        self._views = LiveViews(context, sampler, tails, tracebacks, self._finished)
        self._stored = context.shared(StoredModels.of)
        self._inference = InferenceEndpoints(context, _ConfinedDialect)
        self._live = LiveSessionEndpoints(context)
        context.on_close += [sampler.close, tails.detach, tracebacks.detach]

    def routes(self) -> Iterator[Route]:
        if not self.settings.of(ConsoleSettings).enable_console:
            return
        yield Route("/console", self._page, READING, token=None)
        yield Route("/console/{file:path}", self._page, READING, token=None)
        yield from self._views.routes()
        yield Route(f"{API}/store", self._store, ("GET",), _MANAGEMENT)
        yield Route(f"{API}/sequences/{_VERSION}", self._sequences, ("GET",), _MANAGEMENT, is_quiet=True)
        yield Route(f"{API}/steps/{_VERSION}", self._steps, ("GET",), _MANAGEMENT, is_quiet=True)
        yield Route(f"{API}/sequences/{_VERSION}", self._end_sequence, ("DELETE",), _MANAGEMENT)
        for path in (f"/console/predictions/{_VERSION}", f"/console/predictions/{_VERSION}/{{rest:path}}"):
            yield Route(path, self._predict, ("POST",), _MANAGEMENT, passes_encoding_on=True)
        sessions = f"/console/sequences/{_VERSION}"
        yield Route(sessions, self._live.open, ("GET",), _MANAGEMENT, refuse=self._live.refuse)

    def _page(self, request: Request, values: PathValues) -> Answer:
        path = request.path
        if "file" not in values and not path.endswith("/"):  # relative links start from the folder
            return Answer(307, b"", (("location", "console/"),))
        found = self._files.get(values.get("file", "index.html"))
        if found is None:
            raise not_found()
        return found

    async def _store(self, request: Request, values: PathValues) -> Answer:
        stored = await self._stored.by_name()
        found = (location for every in stored.values() for location in every)
        locations = sorted(each for each in found if each == without_secrets(each))
        return json_answer(locations[:_MOST_LOCATIONS])

    async def _sequences(self, request: Request, values: PathValues) -> Answer:
        """Show the sequences whose ids hold ``text``, in the order ``order``, ``limit`` of them at most."""
        model = self._model_of(values)
        order, limit = request.parameter("order") or SequenceOrder.oldest, request.parameter("limit") or "100"
        if order not in SequenceOrder.__members__:
            raise bad_request(f"Parameter order: {order!a} is none of {', '.join(SequenceOrder)}.")
        if not limit.isdecimal() or not 1 <= int(limit) <= _MOST_SEQUENCES:
            raise bad_request(f"Parameter limit: {limit!a} is no number between 1 and {_MOST_SEQUENCES}.")
        text = request.parameter("text") or ""
        page = await self.serving.sequences(model, text, SequenceOrder(order), int(limit))
        answer = {**page._asdict(), "sequences": [each._asdict() for each in page.sequences]}
        return json_answer(answer)

    def _steps(self, request: Request, values: PathValues) -> Answer:
        """Show the last steps of the sequence ``id``, as far as they are remembered."""
        model = self._model_of(values)
        self.serving.activity(model)  # adds up what has ended
        return json_answer(self._finished.steps(model.name, model.version, request.parameter("id") or ""))

    def _end_sequence(self, request: Request, values: PathValues) -> Answer:
        model = self._model_of(values)
        sequence_id = request.parameter("id")
        if not sequence_id:
            raise bad_request("Parameter id is required: the sequence to end.")
        self.serving.end_sequence(model, sequence_id)
        return json_answer({"status": f'Sequence "{sequence_id}" ends'})

    def _predict(self, request: Request, values: PathValues) -> Reply:
        headers = (("url_path", values.get("rest", "")), ("explain", "False"))
        return self._inference.infer(request, values["model_name"], values["model_version"], headers)

    def _model_of(self, values: PathValues) -> ServedModel:
        return self.serving.get(values["model_name"], values["model_version"])


def page_answers() -> dict[str, Answer]:
    """Return the answers to requests for the files of the page. These hold no data, so that they need no key."""
    return {
        name: Answer(200, path.read_bytes(), (("content-type", TYPES[path.suffix]), *HEADERS))
        for name, path in {**page_files(_FOLDER), **_FOREIGN}.items()
    }
