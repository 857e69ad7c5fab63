"""The endpoint for OpenAI's realtime API: transcription, and conversations with a pipeline of models.

    GET /v1/realtime?intent=transcription[&model=…]     models that declare ``realtime: true``
    GET /v1/realtime?model=…                            models with ``realtimePipeline``, and workflows

It is a WebSocket. vLLM's clients use the same path without the query; what they send tells them apart.
"""

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from torchserve_py.apis.live.live_steps import StepTemplate
from torchserve_py.apis.live.session_endpoints import SUBPROTOCOL, SessionEndpoints, first_known
from torchserve_py.apis.live.session_ends import REPLACED
from torchserve_py.apis.live.socket_session import SocketSession
from torchserve_py.apis.openai import owned_ids
from torchserve_py.apis.openai.background_runs import BackgroundResponse, StepRefused
from torchserve_py.apis.openai.openai_endpoints import DIALECT
from torchserve_py.apis.openai.owned_ids import CONVERSATION
from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.conversation_items import Item
from torchserve_py.apis.realtime.conversation_session import ConversationSession
from torchserve_py.apis.realtime.kept_conversation import KeptConversation
from torchserve_py.apis.realtime.realtime_keys import transcribes
from torchserve_py.apis.realtime.realtime_pipeline import Pipeline, conversing, named, pipeline_of
from torchserve_py.apis.realtime.realtime_session import RealtimeSession
from torchserve_py.apis.workflows.workflow_endpoints import workflows_of
from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.serving.serving import ServedModel
from torchserve_py.endpoints.failures import NOT_FOUND, UNAVAILABLE, EndpointError, Failure, bad_request
from torchserve_py.endpoints.responses import AlreadySent
from torchserve_py.endpoints.routing import EndpointContext, PathValues, Route
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import WebSocket

#: Subprotocols of OpenAI's browser clients: that of the API, and the beta.
_REALTIME: Final = "realtime"
_BETA: Final = "openai-beta.realtime-v1"
_BETA_HEADER: Final = "OpenAI-Beta"
_TRANSCRIPTION: Final = "transcription"
_CONVERSATION: Final = "conversation"
_NOBODY: Final = "No model declares realtimePipeline and openai: true, and no workflow is a chain with a chat model"


class RealtimeEndpoints(SessionEndpoints):
    """Opens sessions of the realtime API."""

    def __init__(self, context: EndpointContext) -> None:
        super().__init__(context)
        self._workflows = context.shared(workflows_of)

    def routes(self) -> Iterator[Route]:
        yield Route("/v1/realtime", self._open, ("GET",), dialect=DIALECT)

    def _open(self, request: Request, values: PathValues) -> Coroutine[Any, Any, AlreadySent]:
        offered = self.offered_to(request)
        intent, name = request.parameter("intent"), request.parameter("model")
        self._workflows.check_awaited(name)
        if intent not in (None, "", _TRANSCRIPTION, _CONVERSATION):
            raise bad_request(f"intent={intent!a}: this server has the intents transcription and conversation.")
        if intent == _CONVERSATION or (not intent and self._means_conversation(name)):
            return self._converse(request, name, offered)
        try:
            name = self.named(name)
        except BadEvent as error:
            raise EndpointError(Failure(404, "ModelNotFoundException", str(error), error.code)) from error
        return self.open(request, name, offered)

    def open(self, request: Request, name: str, offered: Sequence[str] = ()) -> Coroutine[Any, Any, AlreadySent]:
        """Open a session that begins with this model, whose client offers these subprotocols.

        Raises EndpointError: the request is no handshake, no subprotocol is known, the server shuts down, …
        """
        beta = _BETA in offered or "realtime=v1" in request.headers.get(_BETA_HEADER, "")
        answered = [(SUBPROTOCOL, first_known(offered, (_REALTIME, _BETA)))] if offered else []
        make = partial(RealtimeSession, endpoint=self, request=request, beta=beta)
        return self.serve(request, self.serving.get(name), make, headers=answered)

    def _means_conversation(self, name: str | None) -> bool:
        """Return whether a request that has no intent is for a conversation: not if its model transcribes.

        Without a model it is one of vLLM's clients, if a model transcribes.
        """
        transcribing = self._transcribing()
        if name in transcribing or (not name and transcribing):
            return False
        return named(conversing(self.serving, self._workflows), name) is not None

    def _converse(self, request: Request, name: str | None, offered: Sequence[str]) -> Coroutine[Any, Any, AlreadySent]:
        everything = conversing(self.serving, self._workflows)
        if (wanted := named(everything, name)) is None:
            known = ", ".join(each.name for each in everything)
            says = f"Models that converse: {known}" if known else _NOBODY
            message = f"The model {name!a} does not exist. {says}."
            raise EndpointError(Failure(404, "ModelNotFoundException", message, "model_not_found"))
        pipeline = pipeline_of(self.serving, wanted)
        headers = [(SUBPROTOCOL, first_known(offered, (_REALTIME,)))] if offered else []
        return self._resume_or_begin(request, pipeline, headers)

    async def _resume_or_begin(
        self, request: Request, pipeline: Pipeline, headers: Sequence[tuple[str, str]]
    ) -> AlreadySent:
        model, account = pipeline.chat, self.context.account(request, pipeline.name)
        wanted, log, items = request.parameter("conversation_id"), None, list[Item]()
        sequence = owned_ids.sequence_of(wanted, CONVERSATION) if wanted else owned_ids.new_sequence(model, account)
        if sequence is None or (wanted and not self._is_kept(sequence, model, account)):
            raise _no_conversation(str(wanted))
        conversation_id = f"{CONVERSATION}{sequence}"
        steps = partial(BackgroundResponse, conversation_id, sequence, model, self.serving, self._headers, account)
        if wanted:
            try:
                log, items = await KeptConversation.resumed(steps())
                if request.upgrades and self._close_sessions_of(wanted):
                    log, items = await KeptConversation.resumed(steps())  # they may have kept items meanwhile
            except StepRefused as refusal:
                if not refusal.may_pass:
                    raise _no_conversation(wanted) from refusal
                raise EndpointError(Failure(503, UNAVAILABLE, str(refusal), "conversation_not_loaded")) from refusal
        elif model.is_stateful:
            log = KeptConversation(steps())

        def make(socket: WebSocket, templates: Mapping[str, StepTemplate]) -> ConversationSession:
            after = request.parameter("after")
            return ConversationSession(socket, pipeline, templates, conversation_id, log, items, after)

        return await self.serve_several(request, pipeline.models, make, headers, pipeline.workflow)

    @staticmethod
    def _is_kept(sequence: str, model: ServedModel, account: Account | None) -> bool:
        """Return whether a sequence may be a conversation with this model, of the client with this key."""
        is_own = owned_ids.is_of_model(sequence, model) and owned_ids.is_of_key(sequence, account)
        return model.is_stateful and is_own

    def _close_sessions_of(self, conversation_id: str) -> bool:
        """Close sessions whose conversation another connection resumes; return whether there were any."""
        sessions = [session for session in self.open_sessions if session.sequence_id == conversation_id]
        for session in sessions:
            session.close_with(*REPLACED)
        return bool(sessions)

    def leave(self, session: SocketSession) -> None:
        if not isinstance(session, ConversationSession):
            super().leave(session)
            return
        for step in session.take_unanswered():
            step.cancel()
        session.leave()

    def named(self, name: str | None) -> str:
        """Return the model that a name means; the only one, whatever the name is. Raises BadEvent: there is none."""
        names = self._transcribing()
        if name in names:
            return str(name)
        if names and (name is None or len(names) == 1):
            return names[0]
        known = f"Models that transcribe: {', '.join(names)}." if names else "No model declares realtime: true."
        raise BadEvent(f"The model {name!a} does not exist. {known}", "model_not_found", "model")

    def _transcribing(self) -> list[str]:
        """Return the models that transcribe; those of a workflow have a part in its conversations only."""
        nodes = self._workflows.node_models
        return [model.name for model in self.serving.models() if transcribes(model) and model.name not in nodes]


def _no_conversation(conversation_id: str) -> EndpointError:
    message = f"Conversation with id {conversation_id[:100]!a} not found."
    return EndpointError(Failure(404, "NotFound", message, NOT_FOUND))
