"""The events that a client of the realtime API gets: in OpenAI's wording, and in that of vLLM's variant."""

import itertools
import secrets
import time
from typing import Any, Final

from torchserve_py.apis.realtime.client_events import BadEvent
from torchserve_py.apis.realtime.session_config import SessionConfig
from torchserve_py.endpoints.failures import Failure

Event = dict[str, Any]

_TRANSCRIPTION: Final = "conversation.item.input_audio_transcription"


class OpenAIEvents:
    """OpenAI's events; with ``beta`` sessions have the shape of the beta."""

    def __init__(self, *, beta: bool = False) -> None:
        self.session_id = f"sess_{secrets.token_hex(12)}"
        self._beta = beta
        self._created = int(time.time())
        self._prefix = f"event_{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, "event_id": f"{self._prefix}{next(self._numbers)}", **members}

    def created(self, config: SessionConfig) -> Event:
        """The session has begun; the event has the members of vLLM's, too, as nothing tells the clients apart yet."""
        kind = "transcription_session.created" if self._beta else "session.created"
        session = config.described(self.session_id, beta=self._beta)
        return self._event(kind, session=session, id=self.session_id, created=self._created)

    def updated(self, config: SessionConfig, *, beta: bool) -> Event:
        """The session has these settings now."""
        kind = "transcription_session.updated" if beta else "session.updated"
        return self._event(kind, session=config.described(self.session_id, beta=beta))

    def committed(self, item: str, previous: str | None) -> list[Event]:
        """The audio so far is an item."""
        content = [{"type": "input_audio", "transcript": None}]
        message = {"id": item, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        about = {"previous_item_id": previous, "item": {**message, "content": content}}
        kinds = ("created",) if self._beta else ("added", "done")
        return [
            self._event("input_audio_buffer.committed", previous_item_id=previous, item_id=item),
            *(self._event(f"conversation.item.{kind}", **about) for kind in kinds),
        ]

    def cleared(self) -> Event:
        """The audio that was not committed is dropped."""
        return self._event("input_audio_buffer.cleared")

    def delta(self, item: str, text: str) -> Event:
        """A piece of the transcript."""
        return self._event(f"{_TRANSCRIPTION}.delta", item_id=item, content_index=0, delta=text)

    def completed(self, item: str, transcript: str, seconds: float) -> Event:
        """The whole transcript."""
        usage = {"type": "duration", "seconds": round(seconds, 3)}
        return self._event(
            f"{_TRANSCRIPTION}.completed", item_id=item, content_index=0, transcript=transcript, usage=usage
        )

    def failed(self, item: str, failure: Failure) -> Event:
        """The item has no transcript."""
        return self._event(f"{_TRANSCRIPTION}.failed", item_id=item, content_index=0, error=error_of(failure))

    def step_failed(self, failure: Failure, event_id: str | None) -> Event:
        """An event of the client was not carried out."""
        return self._event("error", error={**error_of(failure), "event_id": event_id})

    def bad_event(self, error: BadEvent, event_id: str | None) -> Event:
        """An event of the client is wrong."""
        about = {"type": "invalid_request_error", "code": error.code, "message": str(error), "param": error.param}
        return self._event("error", error={**about, "event_id": event_id})


class VllmEvents(OpenAIEvents):
    """vLLM's events, which have no ids and name no items, for a session that OpenAI's began."""

    def __init__(self, session_id: str) -> None:
        super().__init__()
        self.session_id = session_id

    def _event(self, kind: str, **members: Any) -> Event:
        return {"type": kind, **members}

    def updated(self, config: SessionConfig, *, beta: bool) -> Event:
        return self._event("session.updated", id=self.session_id, model=config.model)

    def committed(self, item: str, previous: str | None) -> list[Event]:
        return []

    def delta(self, item: str, text: str) -> Event:
        return self._event("transcription.delta", delta=text)

    def completed(self, item: str, transcript: str, seconds: float) -> Event:
        return self._event("transcription.done", text=transcript, usage=None)

    def failed(self, item: str, failure: Failure) -> Event:
        return self.step_failed(failure, None)

    def step_failed(self, failure: Failure, event_id: str | None) -> Event:
        return self._event("error", error=failure.message, code=failure.cause or failure.type)

    def bad_event(self, error: BadEvent, event_id: str | None) -> Event:
        return self._event("error", error=str(error), code=error.code)


def error_of(failure: Failure) -> dict[str, Any]:
    """Return a failure as an error of OpenAI's."""
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {"type": kind, "code": failure.cause or failure.type, "message": failure.message, "param": None}
