"""One conversation of the realtime API, from the upgrade to the close: what its client asks, and whose turn it is.

Audio goes to the model that detects speech, and from there, utterance by utterance, to the transcriber; responses run
beside that (`response_run`). `turn_taking` has the states of the session.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from torchserve_py.apis.live.live_steps import StepCall, StepTemplate
from torchserve_py.apis.live.session_ends import BROKEN, GOING, SessionOver, check_server_stays
from torchserve_py.apis.live.socket_session import SocketSession
from torchserve_py.apis.openai.background_runs import StepRefused
from torchserve_py.apis.realtime.audio_sequence import APPEND, LOSSES, AudioSequence, drop_answer
from torchserve_py.apis.realtime.client_events import BadEvent, ClientEvent, audio_in, id_in, read_event
from torchserve_py.apis.realtime.conversation_config import ConversationConfig, ResponseRequest, read_response
from torchserve_py.apis.realtime.conversation_events import ConversationEvents
from torchserve_py.apis.realtime.conversation_items import Conversation, Item, read_item, spoken_by_user
from torchserve_py.apis.realtime.kept_conversation import KeptConversation
from torchserve_py.apis.realtime.pending_audio import PendingAudio
from torchserve_py.apis.realtime.pipeline_calls import PipelineCalls
from torchserve_py.apis.realtime.realtime_pipeline import Pipeline
from torchserve_py.apis.realtime.response_run import CLIENT_CANCELLED, TURN_DETECTED, ResponseRun
from torchserve_py.apis.realtime.server_events import Event
from torchserve_py.apis.realtime.transcriber import Transcriber
from torchserve_py.apis.realtime.turn_detection import SpeechStarted, TurnDetector
from torchserve_py.apis.realtime.turn_taking import Deed, Happening, TurnTaking
from torchserve_py.apis.realtime.utterance import Utterance
from torchserve_py.endpoints.failures import INTERNAL, UNAVAILABLE, EndpointError, Failure
from torchserve_py.net.http1.errors import ReaderStalled
from torchserve_py.net.websocket import Message, WebSocket

logger = logging.getLogger(__name__)

#: Seconds of audio in one step: the others of a batch wait while a piece is heard.
_PIECE: Final = 1.0
#: Responses beside the conversation that may be made at a time.
_MOST_ASIDE: Final = 4


class _Windows(msgspec.Struct):
    """What the model that detects speech answers: a probability for each window, and the seconds of a window."""

    probabilities: list[float]
    window: float


class ConversationSession(SocketSession):
    """A session; ``templates`` has what the calls of each model share, by the model's name.

    It resumes a conversation that has ``items``; the client has those up to the item ``after``.
    """

    def __init__(
        self,
        socket: WebSocket,
        pipeline: Pipeline,
        templates: Mapping[str, StepTemplate],
        conversation_id: str,
        log: KeptConversation | None,
        items: Sequence[Item] = (),
        after: str | None = None,
    ) -> None:
        super().__init__(socket, templates[pipeline.chat.name], is_text=True)
        self.sequence_id = conversation_id
        self._pipeline = pipeline
        self._config = ConversationConfig.of(pipeline)
        self._events = ConversationEvents(conversation_id)
        self._conversation = Conversation()
        for item in items:
            self._conversation.add(item)
        ids = [item.id for item in items]
        self._new_to_client = items[ids.index(after) + 1 :] if after in ids else items
        self._log = log
        speaking = None if pipeline.synthesizer is None else templates[pipeline.synthesizer.name]
        self._calls = PipelineCalls(self.template, speaking, pipeline.voices)
        self._turns = TurnTaking()
        self._tasks: set[asyncio.Future[None]] = set()
        self._run: ResponseRun | None = None
        self._run_task: asyncio.Future[None] | None = None
        self._aside = set[ResponseRun]()
        # The ear.
        self._pending = PendingAudio(self._config.format)
        self._half = b""
        self._utterance = Utterance()
        self._committed: Utterance | None = None  # the latest one
        self._has_words = False  # since the latest response
        self._detector = TurnDetector()
        self._hearing: AudioSequence | None = None
        self._window = 0
        if pipeline.voice_activity is not None:
            template = templates[pipeline.voice_activity.name]
            self._hearing, self._window = AudioSequence(template), template.window
        self._transcriber: Transcriber | None = None
        if pipeline.transcriber is not None:
            template = templates[pipeline.transcriber.name]
            self._transcriber = Transcriber(template, self._on_words, self._on_transcript)
            self._start(self._transcriber.run())

    async def greet(self) -> None:
        await self._tell(self._events.session("created", self._config, self._pipeline))
        for item in self._new_to_client:
            previous = self._conversation.before(item)
            await self._tell(self._events.item("added", item, previous), self._events.item("done", item, previous))

    async def _keep(self, item: Item) -> None:
        """Store an item as it is now, if the chat model keeps conversations."""
        await self._store(lambda log: log.keep(item, self._conversation))

    async def _store(self, change: Callable[[KeptConversation], Awaitable[None]]) -> None:
        if self._log is None:
            return
        try:
            await change(self._log)
        except StepRefused as refusal:
            if self._log is not None:
                message = f"The conversation is not stored from here on: {refusal}"
                self._log = None
                await self._tell(self._events.failed_run(Failure(503, UNAVAILABLE, message, "conversation_not_stored")))

    def leave(self) -> None:
        """End all that runs for the session, which has ended."""
        for task in self._tasks:
            task.cancel()
        if self._hearing is not None:
            self._hearing.leave()
        if self._transcriber is not None:
            self._transcriber.leave()

    def close_later(self) -> None:
        self.put(self._go)

    async def _go(self) -> None:
        """End the session, whose server shuts down, once the response is over that is being made."""
        if self._run_task is not None:
            await asyncio.wait((self._run_task,))
        raise SessionOver(*GOING)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, SessionOver):
            self.close_with(error.code, error.reason)
            return
        if isinstance(error, (ConnectionError, ReaderStalled)):
            return
        logger.error("A conversation failed", exc_info=error, extra={"sequence_id": self.sequence_id})
        self.close_with(*BROKEN)

    async def _tell(self, *events: Event) -> None:
        for event in events:
            await self.send(msgspec.json.encode(event))

    # What the client sends.

    async def take(self, message: Message) -> None:
        self.active_at = self.clock.now()
        event_id = None
        try:
            event = read_event(message.data)
            event_id = event.event_id
            await self._carry_out(event)
        except BadEvent as error:
            await self._tell(self._events.bad_event(error, event_id or id_in(message.data)))

    async def _carry_out(self, event: ClientEvent) -> None:
        deed = self._deeds.get(event.type)
        if deed is None:
            known = ", ".join(self._deeds)
            raise BadEvent(f"Unknown event {event.type[:100]!a}; there are {known}.", "unknown_event", "type")
        await deed(self, event)

    async def _in_turn(self, deed: Callable[[], Awaitable[None]]) -> None:
        """Do something once all audio before it was heard, and wait for that. Raises BadEvent: what it raises."""
        done = asyncio.get_running_loop().create_future()

        async def do() -> None:
            try:
                await deed()
            except BadEvent as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.put(do)
        await done

    # Settings.

    async def _update(self, event: ClientEvent) -> None:
        if isinstance(event.session, msgspec.UnsetType):
            raise BadEvent("The event has no session: its settings.", "missing_required_parameter", "session")
        config = self._config.updated(event.session, self._pipeline)
        await self._in_turn(partial(self._set, config))
        await self._tell(self._events.session("updated", self._config, self._pipeline))

    async def _set(self, config: ConversationConfig) -> None:
        if config.format != self._config.format:
            if self._utterance.seconds or self._half or self._detector.is_speech:
                message = "The format changes only when all audio is committed or cleared."
                raise BadEvent(message, "invalid_value", "session.audio.input.format")
            self._pending = PendingAudio(config.format, self._pending.end)
        if config.turns is not None and self._config.turns is None:
            self._detector = TurnDetector(self._pending.end)
        if config.turns is None and self._config.turns is not None:
            self._pending.take()
            if self._detector.is_speech:
                self._detector.is_speech = False
                self._turns.after(Happening.silence)
        self._config = config
        if self._transcriber is not None:
            self._transcriber.hints = config.hints or {}

    # Audio.

    async def _append(self, event: ClientEvent) -> None:
        audio = audio_in(event)
        if self._transcriber is None:
            message = f"The model {self._pipeline.name} has no transcriber in its pipeline; send text."
            raise BadEvent(message, "unsupported_event", "type")
        audio = self._half + audio
        sample, rate = self._config.format.sample_size, self._config.format.rate
        whole, size = len(audio) - len(audio) % sample, int(_PIECE * rate) * sample
        self._half = audio[whole:]
        for begin in range(0, whole, size):
            piece = audio[begin : min(whole, begin + size)]
            if self._config.turns is None or self._hearing is None:
                await self._in_turn(partial(self._append_now, piece))
                continue
            while self._count >= self._window:
                self._room_comes = asyncio.get_running_loop().create_future()
                await self._room_comes
            step = self._detect(piece)
            self.put(partial(self._hear, step, piece, event.event_id), step)

    async def _append_now(self, audio: bytes) -> None:
        """Let the transcriber have audio of an utterance that the client will commit."""
        assert self._transcriber is not None, "audio is taken only with one"
        self._pending.append(audio)
        await self._transcriber.append(self._utterance, self._pending.take(), self._config.format)

    def _detect(self, audio: bytes) -> StepCall:
        assert self._hearing is not None, "the settings have turn detection only with a model for it"
        self._hearing.renew()
        return self._hearing.submit(APPEND, audio, self._config.format, {}, drop_answer)

    async def _hear(self, step: StepCall, audio: bytes, event_id: str | None) -> None:
        """Do what follows from the answer of the model that detects speech."""
        windows, failure = await self._windows(step)
        if failure is not None and failure.cause in LOSSES:  # of the model's state, but not of the audio
            self._detector.skip_to(self._pending.end)
            windows, failure = await self._windows(self._detect(audio))
        self._pending.append(audio)
        try:
            if windows is not None:
                await self._follow(windows)
            await self._pass_on_speech()
        except BadEvent as error:
            await self._tell(self._events.bad_event(error, event_id))
        if failure is not None:
            self._detector.skip_to(self._pending.end)
            await self._tell(self._events.step_failed(failure, event_id))
            check_server_stays(failure)

    async def _follow(self, windows: _Windows) -> None:
        turns = self._config.turns
        assert turns is not None, "speech is detected"
        for event in self._detector.hear(windows.probabilities, windows.window, turns):
            if isinstance(event, SpeechStarted):
                await self._speech_started(event.at)
            else:
                await self._speech_stopped(event.at)

    async def _pass_on_speech(self) -> None:
        """Let the transcriber have what is said; of silence, keep what may lead to an utterance."""
        turns = self._config.turns
        assert turns is not None and self._transcriber is not None, "speech is detected"
        if self._detector.is_speech:
            await self._transcriber.append(self._utterance, self._pending.take(), self._config.format)
        else:
            self._pending.drop(self._detector.now - turns.prefix_padding_ms / 1000)

    async def _windows(self, step: StepCall) -> tuple[_Windows | None, Failure | None]:
        assert self._hearing is not None, "it was asked"
        windows, failure = None, None
        try:
            windows = msgspec.json.decode((await step.next_usable()).body, type=_Windows)
        except EndpointError as error:
            failure = error.failure
        except msgspec.MsgspecError as error:
            message = f"The model that detects speech has answered with something else than windows: {error}"
            failure = Failure(500, INTERNAL, message, "voice_activity_answer")
        self._hearing.answered(step, failure)
        return windows, failure

    async def _speech_started(self, at: float) -> None:
        turns = self._config.turns
        assert turns is not None, "speech is detected"
        begin = max(0.0, at - turns.prefix_padding_ms / 1000)
        self._pending.drop(begin)
        await self._tell(self._events.speech_started(self._utterance.id, begin))
        deed = self._turns.after(Happening.speech_interrupts if turns.interrupt_response else Happening.speech)
        if deed is Deed.interrupt:
            await self._interrupt()

    async def _speech_stopped(self, at: float) -> None:
        turns = self._config.turns
        assert turns is not None and self._transcriber is not None, "speech is detected"
        await self._tell(self._events.speech_stopped(self._utterance.id, at))
        await self._transcriber.append(self._utterance, self._pending.take(at), self._config.format)
        self._turns.after(Happening.silence_asks if turns.create_response else Happening.silence)
        await self._commit_utterance()

    async def _interrupt(self) -> None:
        """End the response that the user interrupts, and forget what of it the user has not heard."""
        run = self._run
        if run is None:
            return
        if not run.is_over:
            run.cancel(TURN_DETECTED)
            return
        heard, item = run.heard_seconds, run.played
        if item is not None and heard < item.seconds and self._conversation.has(item):
            item.truncate(heard)
            await self._keep(item)
            await self._tell(self._events.truncated(item.id, heard))

    async def _commit(self, event: ClientEvent) -> None:
        await self._in_turn(self._commit_now)

    async def _commit_now(self) -> None:
        if self._half:
            raise BadEvent("The audio ends within a sample: pcm16 has two bytes for each.", "invalid_audio", "audio")
        if self._transcriber is not None:
            await self._transcriber.append(self._utterance, self._pending.take(), self._config.format)
        if not self._utterance.seconds:
            raise BadEvent("Error committing input audio buffer: it has no audio.", "input_audio_buffer_commit_empty")
        await self._commit_utterance()

    async def _commit_utterance(self) -> None:
        """Make an item of the utterance; its words come later."""
        assert self._transcriber is not None, "it has audio"
        utterance, self._utterance = self._utterance, Utterance()
        item = spoken_by_user(utterance.id)
        self._conversation.add(item)
        previous = self._conversation.before(item)
        self._committed = utterance
        await self._tell(self._events.buffer_committed(item.id, previous), self._events.item("added", item, previous))
        self._transcriber.commit(utterance, self._config.format)

    async def _clear(self, event: ClientEvent) -> None:
        self._half = b""
        await self._in_turn(self._clear_now)

    async def _clear_now(self) -> None:
        utterance, self._utterance = self._utterance, Utterance()
        self._pending.take()
        if self._detector.is_speech:
            self._turns.after(Happening.silence)
        self._detector = TurnDetector(self._pending.end)
        if utterance.seconds and self._transcriber is not None:
            self._transcriber.clear(utterance, self._config.format)
        await self._tell(self._events.cleared())

    # Words of the user.

    async def _on_words(self, utterance: Utterance, text: str) -> None:
        if self._config.hints is not None:
            await self._tell(self._events.delta(utterance.id, text))

    async def _on_transcript(self, utterance: Utterance) -> None:
        item = self._conversation.find(utterance.id)
        words = "" if utterance.failure is not None else utterance.transcript.strip()
        if item is not None:
            item.members["content"][0]["transcript"] = words
            if item.heard is not None and not item.heard.done():
                item.heard.set_result(None)
            await self._keep(item)
        if item is not None and self._conversation.has(item):
            await self._tell(self._events.item("done", item, self._conversation.before(item)))
            self._has_words |= bool(words)
        if utterance.failure is not None:
            await self._tell(self._events.failed(utterance.id, utterance.failure))
        elif self._config.hints is not None:
            await self._tell(self._events.completed(utterance.id, words, utterance.seconds))
        if utterance is self._committed:
            self._ask(Happening.words if self._has_words else Happening.no_words, self._default_request())

    # Responses.

    def _default_request(self) -> ResponseRequest:
        return ResponseRequest(self._config.answer)

    async def _create_response(self, event: ClientEvent) -> None:
        request = read_response(event.response, self._config.answer, self._pipeline)
        if request.joins:
            await self._in_turn(partial(self._request, request))
        elif len(self._aside) >= _MOST_ASIDE:
            message = f"{_MOST_ASIDE} responses beside the conversation are made already."
            raise BadEvent(message, "too_many_responses", "response.conversation")
        else:
            run = self._new_run(request)
            self._aside.add(run)
            self._start(self._respond_aside(run))

    async def _request(self, request: ResponseRequest) -> None:
        if self._run is not None and self._run_task is not None and self._run.is_cancelled:
            await asyncio.wait((self._run_task,))
        self._ask(Happening.request, request)

    def _ask(self, happening: Happening, request: ResponseRequest) -> None:
        deed = self._turns.after(happening)
        if deed is Deed.begin:
            self._has_words = False
            before, self._run = self._run_task, self._new_run(request)
            self._run_task = self._start(self._respond(self._run, before))
        elif deed is Deed.refuse:
            message = "The conversation has an active response already; wait for response.done, or cancel it."
            raise BadEvent(message, "conversation_already_has_active_response")

    def _new_run(self, request: ResponseRequest) -> ResponseRun:
        context = [item for item in self._conversation if item.id not in self._conversation.dropped]
        if request.items is not None:
            context = [
                self._conversation.get(each, "reference") if isinstance(each, str) else each for each in request.items
            ]
        about = (self._conversation, self._calls, self._events, self._tell, self._keep, self._config.retained)
        return ResponseRun(request, context, *about)

    async def _respond(self, run: ResponseRun, before: asyncio.Future[None] | None) -> None:
        if before is not None:  # which may have been interrupted, and is about to say so
            await asyncio.wait((before,))
        await run.run()
        if self._run is run:
            self._turns.after(Happening.over)

    async def _respond_aside(self, run: ResponseRun) -> None:
        try:
            await run.run()
        finally:
            self._aside.discard(run)

    async def _cancel(self, event: ClientEvent) -> None:
        wanted = event.response_id
        runs = [run for run in (self._run, *self._aside) if run is not None and not run.is_over]
        for run in runs:
            if wanted in (run.id, None):
                run.cancel(CLIENT_CANCELLED)
                return
        raise BadEvent("Cancellation failed: no active response found.", "response_cancel_not_active", "response_id")

    # Items.

    async def _create_item(self, event: ClientEvent) -> None:
        if isinstance(event.item, msgspec.UnsetType):
            raise BadEvent("The event has no item.", "missing_required_parameter", "item")
        item = read_item(msgspec.json.decode(event.item))
        self._conversation.add(item, event.previous_item_id)
        previous = self._conversation.before(item)
        await self._tell(self._events.item("added", item, previous))
        await self._keep(item)
        await self._tell(self._events.item("done", item, previous))

    async def _retrieve_item(self, event: ClientEvent) -> None:
        await self._tell(self._events.item("retrieved", self._conversation.get(event.item_id, "retrieve")))

    async def _delete_item(self, event: ClientEvent) -> None:
        item = self._conversation.delete(event.item_id)
        await self._store(lambda log: log.delete(item))
        await self._tell(self._events.deleted(item.id))

    async def _truncate_item(self, event: ClientEvent) -> None:
        item = self._conversation.get(event.item_id, "truncate")
        if not item.made:
            message = f"The item {item.id} is no message of the assistant with audio."
            raise BadEvent(message, "item_truncate_invalid_item", "item_id")
        if event.content_index not in (0, None):
            message = f"content_index: {event.content_index}; the audio is the content 0."
            raise BadEvent(message, "invalid_value", "content_index")
        end = event.audio_end_ms
        if end is None or not 0 <= end <= item.made * 1000 + 1:
            message = f"audio_end_ms: {end}; the audio of {item.id} has {int(item.made * 1000)} ms."
            raise BadEvent(message, "invalid_value", "audio_end_ms")
        if end / 1000 < item.seconds:
            item.truncate(end / 1000)
            await self._keep(item)
        await self._tell(self._events.truncated(item.id, end / 1000))

    _deeds: Final[Mapping[str, Callable[[ConversationSession, ClientEvent], Awaitable[None]]]] = {
        "session.update": _update,
        "input_audio_buffer.append": _append,
        "input_audio_buffer.commit": _commit,
        "input_audio_buffer.clear": _clear,
        "conversation.item.create": _create_item,
        "conversation.item.retrieve": _retrieve_item,
        "conversation.item.delete": _delete_item,
        "conversation.item.truncate": _truncate_item,
        "response.create": _create_response,
        "response.cancel": _cancel,
    }
