"""The events of a conversation that a client gets, in OpenAI's wording."""

from __future__ import annotations

from typing import Any, Final

from torchserve_py.apis.realtime.conversation_config import ConversationConfig
from torchserve_py.apis.realtime.conversation_items import Item
from torchserve_py.apis.realtime.realtime_pipeline import Pipeline
from torchserve_py.apis.realtime.server_events import Event, OpenAIEvents, error_of
from torchserve_py.endpoints.failures import Failure

_MILLISECONDS: Final = 1000


class ConversationEvents(OpenAIEvents):
    """The events of one session; what they have in common with transcription is `OpenAIEvents`'."""

    def __init__(self, conversation_id: str) -> None:
        super().__init__()
        self.conversation_id = conversation_id

    def session(self, kind: str, config: ConversationConfig, pipeline: Pipeline) -> Event:
        """The session has begun ("created"), or has other settings now ("updated")."""
        session = config.described(self.session_id, pipeline)
        return self._event(f"session.{kind}", session={**session, "conversation_id": self.conversation_id})

    # Items.

    def item(self, kind: str, item: Item, previous: str | None = None) -> Event:
        """An item was added, or is done, or is what the client wanted to retrieve."""
        about = {} if kind == "retrieved" else {"previous_item_id": previous}
        return self._event(f"conversation.item.{kind}", **about, item=item.shown())

    def deleted(self, item_id: str) -> Event:
        """The item was removed."""
        return self._event("conversation.item.deleted", item_id=item_id)

    def truncated(self, item_id: str, seconds: float) -> Event:
        """What the user has not heard of a spoken message was removed."""
        end = round(seconds * _MILLISECONDS)
        return self._event("conversation.item.truncated", item_id=item_id, content_index=0, audio_end_ms=end)

    # Speech.

    def speech_started(self, item_id: str, at: float) -> Event:
        """The user speaks, from ``at`` seconds on."""
        start = round(at * _MILLISECONDS)
        return self._event("input_audio_buffer.speech_started", item_id=item_id, audio_start_ms=start)

    def speech_stopped(self, item_id: str, at: float) -> Event:
        """The user has stopped."""
        end = round(at * _MILLISECONDS)
        return self._event("input_audio_buffer.speech_stopped", item_id=item_id, audio_end_ms=end)

    def buffer_committed(self, item_id: str, previous: str | None) -> Event:
        """The audio so far is an item."""
        return self._event("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)

    # Responses.

    def response(self, kind: str, response: dict[str, Any]) -> Event:
        """A response was created, or is done."""
        return self._event(f"response.{kind}", response=response)

    def output_item(self, kind: str, response_id: str, index: int, item: Item) -> Event:
        """An item of a response was added, or is done."""
        return self._event(
            f"response.output_item.{kind}", response_id=response_id, output_index=index, item=item.shown()
        )

    def of_item(self, kind: str, response_id: str, index: int, item: Item, **more: Any) -> Event:
        """Something of an item of a response: a delta, or that a kind of content is done."""
        about = {"response_id": response_id, "item_id": item.id, "output_index": index}
        return self._event(f"response.{kind}", **about, **more)

    def failed_run(self, failure: Failure) -> Event:
        """Something has failed that no event of the client has asked for."""
        return self._event("error", error={**error_of(failure), "event_id": None})
