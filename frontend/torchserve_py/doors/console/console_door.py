"""The door of the console: the page, what it shows live, and requests to models that the page sends.

    GET    /console/{file}                         the page; no key
    GET    /console/api/server                     what does not change
    GET    /console/api/overview                   events: all models, each second
    GET    /console/api/models/{model}/{version}   events: one model version, each second
    GET    /console/api/store                      what the model store has that is not served
    GET    /console/api/logs/{worker}              events: the lines of a worker
    GET    /console/api/sequences/{model}/{version}     open sequences
    DELETE /console/api/sequences/{model}/{version}     end one
    POST   /console/predictions/{model}/{version}  as ``/predictions`` of the inference listener
    GET    /console/sequences/{model}/{version}    as ``/sequences`` there

All but the page need the management key. The page changes models over the management API.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, Final

from torchserve_py.core.observed import SequenceOrder
from torchserve_py.doors.console.event_stream import send_events
from torchserve_py.doors.console.page_files import PageFiles
from torchserve_py.doors.console.sampler import Sampler
from torchserve_py.doors.console.views import Views
from torchserve_py.doors.failures import bad_request, not_found
from torchserve_py.doors.live.live_session_door import LiveSessionDoor
from torchserve_py.doors.predictions import InferenceDoor
from torchserve_py.doors.responses import Sent
from torchserve_py.doors.routing import READING, DoorContext, PathValues, Reply, Route
from torchserve_py.doors.token_authorization import TokenType
from torchserve_py.logs.worker_tails import WorkerTails
from torchserve_py.transport.http1.request import Request

_API: Final = "/console/api"
_VERSION: Final = "{model_name}/{model_version}"
_MANAGEMENT: Final = TokenType.management
_PREDICT: Final = (("url_path", ""), ("explain", "False"))
#: The most sequences in one answer.
_MOST_SEQUENCES: Final = 200
#: The most locations that are proposed for a registration.
_MOST_LOCATIONS: Final = 500


class ConsoleDoor:
    """Shows the page and feeds it."""

    def __init__(self, context: DoorContext) -> None:
        self._context = context
        self._serving = context.serving
        self._responses = context.responses
        self._is_on = context.settings.enable_console
        if not self._is_on:
            return
        self._files = PageFiles()
        self._sampler = Sampler(context.serving)
        self._tails = WorkerTails()
        self._tails.attach()
        self._views = Views(context, self._sampler, self._tails)
        self._inference = InferenceDoor(context)
        self._live = LiveSessionDoor(context)
        context.on_close += [self._sampler.close, self._tails.detach]

    @property
    def routes(self) -> Sequence[Route]:
        return list(self._rows()) if self._is_on else []

    def _rows(self) -> Iterator[Route]:
        yield Route("/console", self._page, READING, token=None)
        yield Route("/console/{file:path}", self._page, READING, token=None)
        yield Route(f"{_API}/server", self._server, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/overview", self._overview, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/models/{_VERSION}", self._model, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/logs/{{worker_id}}", self._log, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/store", self._store, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/sequences/{_VERSION}", self._sequences, ("GET",), _MANAGEMENT)
        yield Route(f"{_API}/sequences/{_VERSION}", self._end_sequence, ("DELETE",), _MANAGEMENT)
        yield Route(f"/console/predictions/{_VERSION}", self._predict, ("POST",), _MANAGEMENT)
        yield Route(f"/console/sequences/{_VERSION}", self._open_session, ("GET",), token=None)

    def _page(self, request: Request, values: PathValues) -> Sent:
        path = request.target.partition("?")[0]
        if "file" not in values and not path.endswith("/"):  # relative links start from the folder
            return self._responses.send(request, 307, b"", (("location", "console/"),))
        found = self._files.get(values.get("file", ""))
        if found is None:
            raise not_found()
        return self._responses.send(request, 200, *found)

    def _server(self, request: Request, values: PathValues) -> Sent:
        return self._responses.send_json(request, 200, self._views.server())

    async def _store(self, request: Request, values: PathValues) -> Sent:
        stored = await self._serving.stored()
        locations = sorted(location for every in stored.values() for location in every)
        return self._responses.send_json(request, 200, locations[:_MOST_LOCATIONS])

    def _overview(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        return send_events(self._context, request, self._views.overview())

    def _model(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        model = self._serving.get(values["model_name"], values["model_version"])
        return send_events(self._context, request, self._views.model(model))

    def _log(self, request: Request, values: PathValues) -> Coroutine[Any, Any, Sent]:
        return send_events(self._context, request, self._views.log(values["worker_id"]))

    async def _sequences(self, request: Request, values: PathValues) -> Sent:
        """Show the sequences whose ids hold ``text``, in the order ``order``, ``limit`` of them at most.

        Raises:
            DoorError: A parameter is wrong.
        """
        model = self._serving.get(values["model_name"], values["model_version"])
        order, limit = request.parameter("order") or SequenceOrder.oldest, request.parameter("limit") or "100"
        if order not in SequenceOrder.__members__:
            raise bad_request(f"Parameter order: {order!a} is none of {', '.join(SequenceOrder)}.")
        if not limit.isdecimal() or not 1 <= int(limit) <= _MOST_SEQUENCES:
            raise bad_request(f"Parameter limit: {limit!a} is no number between 1 and {_MOST_SEQUENCES}.")
        text = request.parameter("text") or ""
        page = await self._serving.sequences(model, text, SequenceOrder(order), int(limit))
        answer = {**page._asdict(), "sequences": [each._asdict() for each in page.sequences]}
        return self._responses.send_json(request, 200, answer)._replace(is_quiet=True)

    def _end_sequence(self, request: Request, values: PathValues) -> Sent:
        model = self._serving.get(values["model_name"], values["model_version"])
        sequence_id = request.parameter("id")
        if not sequence_id:
            raise bad_request("Parameter id is required: the sequence to end.")
        self._serving.end_sequence(model, sequence_id)
        return self._responses.send_json(request, 200, {"status": f'Sequence "{sequence_id}" ends'})

    def _predict(self, request: Request, values: PathValues) -> Reply:
        return self._inference.infer(request, values["model_name"], values["model_version"], _PREDICT)

    def _open_session(self, request: Request, values: PathValues) -> Reply:
        return self._live.open(request, values, _MANAGEMENT)
