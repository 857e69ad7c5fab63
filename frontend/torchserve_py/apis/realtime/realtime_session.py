"""One session of the realtime API: pieces of audio are steps of a sequence, whose answers are the transcript.

Audio that was appended and not committed belongs to the next item. A transcript never covers less than its item: if the
handler has not heard all of it, the item fails when it is committed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from torchserve_py.apis.live.live_steps import SendPart, StepCall, StepTemplate
from torchserve_py.apis.live.session_ends import check_server_stays
from torchserve_py.apis.live.socket_session import SocketSession
from torchserve_py.apis.realtime.audio_sequence import APPEND, CLEAR, COMMIT, AudioSequence, drop_answer
from torchserve_py.apis.realtime.client_events import BadEvent, ClientEvent, audio_in, id_in, read_event
from torchserve_py.apis.realtime.server_events import Event, OpenAIEvents, VllmEvents
from torchserve_py.apis.realtime.session_config import SessionConfig
from torchserve_py.apis.realtime.utterance import Utterance
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.net.http1.request import Request
from torchserve_py.net.websocket import Message, WebSocket

if TYPE_CHECKING:
    from torchserve_py.apis.realtime.realtime_endpoints import RealtimeEndpoints


class RealtimeSession(SocketSession):
    """A session, from the upgrade to the close; with ``beta`` it begins in the shape of the beta."""

    def __init__(
        self, socket: WebSocket, template: StepTemplate, endpoint: RealtimeEndpoints, request: Request, *, beta: bool
    ) -> None:
        super().__init__(socket, template, is_text=True)
        self._endpoint = endpoint
        self._request = request
        self._config = SessionConfig(template.model.name)
        self._events = OpenAIEvents(beta=beta)
        self._item = Utterance()
        self._previous: str | None = None
        #: The first byte of a sample whose second one has not arrived.
        self._half = b""
        self._begin(template)

    def _begin(self, template: StepTemplate) -> None:
        self._audio = AudioSequence(template)
        self.sequence_id = self._audio.id

    async def greet(self) -> None:
        await self._tell(self._events.created(self._config))

    async def take(self, message: Message) -> None:
        await self.wait_for_room()
        event_id = None
        try:
            event = read_event(message.data)
            event_id = event.event_id
            self._carry_out(event)
        except BadEvent as error:
            self._put_events(self._events.bad_event(error, event_id or id_in(message.data)))

    def _carry_out(self, event: ClientEvent) -> None:
        match event.type:
            case "session.update" | "transcription_session.update":
                self._update(event)
            case "input_audio_buffer.append":
                self._append(audio_in(event), event.event_id)
            case "input_audio_buffer.commit":
                self._commit(event)
            case "input_audio_buffer.clear":
                self._clear(event)
            case _:
                known = "session.update, transcription_session.update, input_audio_buffer.append, .commit and .clear"
                raise BadEvent(f"Unknown event {event.type[:100]!a}; there are {known}.", "unknown_event", "type")

    # Settings.

    def _update(self, event: ClientEvent) -> None:
        beta = event.type != "session.update"
        if event.session is not msgspec.UNSET:
            config = self._config.updated(event.session, beta=beta, named=self._endpoint.named)
        elif isinstance(event.model, str) and not beta:  # vLLM's clients name the model so
            config = self._config.for_vllm(self._endpoint.named(event.model))
        else:
            raise BadEvent("The event has no session: its settings.", "missing_required_parameter", "session")
        if config.format != self._config.format and (self._item.seconds or self._half):
            raise BadEvent("The format changes only when all audio is committed or cleared.", "invalid_value", "format")
        if config.model != self._config.model:
            if self._audio.last:
                raise BadEvent("The session has begun with another model.", "invalid_value", "transcription.model")
            try:
                self.template = self._endpoint.template(self._request, self._endpoint.serving.get(config.model))
            except EndpointError as error:
                raise BadEvent(str(error), "insufficient_permissions", "transcription.model") from error
            self._begin(self.template)
        self._config = config
        if event.session is msgspec.UNSET:
            self._events = VllmEvents(self._events.session_id)
        self._put_events(self._events.updated(config, beta=beta))

    # Audio.

    def _append(self, audio: bytes, event_id: str | None) -> None:
        audio = self._half + audio
        whole = len(audio) - len(audio) % self._config.format.sample_size
        audio, self._half = audio[:whole], audio[whole:]
        if not audio:
            return
        item = self._item
        item.seconds += self._config.format.seconds(len(audio))
        step = self._submit(APPEND, audio, partial(self._heard, item))
        self.put(partial(self._relay_append, step, item, event_id), step)

    def _commit(self, event: ClientEvent) -> None:
        if isinstance(self._events, VllmEvents):
            if event.final is not True:
                return  # its clients say so that audio comes; it is transcribed as it comes anyway
        elif event.final is not msgspec.UNSET:
            message = "final is a member of vLLM's API; its clients name the model first: session.update with model."
            raise BadEvent(message, "model_not_validated", "final")
        if self._half:
            raise BadEvent("The audio ends within a sample: pcm16 has two bytes for each.", "invalid_audio", "audio")
        item = self._item
        if not item.seconds:
            raise BadEvent("Error committing input audio buffer: it has no audio.", "input_audio_buffer_commit_empty")
        self._item, previous, self._previous = Utterance(), self._previous, item.id
        step = self._submit(COMMIT, b"", partial(self._heard, item))
        self.put(partial(self._relay_commit, step, item, previous), step)

    def _clear(self, event: ClientEvent) -> None:
        item, self._item, self._half = self._item, Utterance(), b""
        if item.seconds:
            step = self._submit(CLEAR, b"", drop_answer)
            self.put(partial(self._relay_clear, step, event.event_id), step)
        else:
            self._put_events(self._events.cleared())

    def _submit(self, kind: str, body: bytes, send: SendPart) -> StepCall:
        config = self._config
        return self._audio.submit(kind, body, config.format, config.hints, send)

    # Transcripts.

    async def _heard(self, item: Utterance, part: Part) -> None:
        """Pass on what the handler says of an item."""
        if text := item.heard(part):
            await self._tell(self._events.delta(item.id, text))

    async def _relay_append(self, step: StepCall, item: Utterance, event_id: str | None) -> None:
        failure = await self._relay(step)
        if failure is not None:
            item.failure = item.failure or failure
            await self._tell(self._events.step_failed(failure, event_id))
            check_server_stays(failure)

    async def _relay_commit(self, step: StepCall, item: Utterance, previous: str | None) -> None:
        await self._tell(*self._events.committed(item.id, previous))
        failure = await self._relay(step)
        item.failure = item.failure or failure
        if item.failure is not None:
            await self._tell(self._events.failed(item.id, item.failure))
        else:
            await self._tell(self._events.completed(item.id, item.transcript, item.seconds))
        check_server_stays(failure)

    async def _relay_clear(self, step: StepCall, event_id: str | None) -> None:
        failure = await self._relay(step)
        if failure is not None:
            await self._tell(self._events.step_failed(failure, event_id))
        await self._tell(self._events.cleared())
        check_server_stays(failure)

    async def _relay(self, step: StepCall) -> Failure | None:
        """Pass the answer to a step on; return why there is none, if so."""
        failure = await self._audio.relay(step)
        self.sequence_id = self._audio.id
        return failure

    def _put_events(self, *events: Event) -> None:
        self.put(partial(self._tell, *events))

    async def _tell(self, *events: Event) -> None:
        for event in events:
            await self.send(msgspec.json.encode(event))
