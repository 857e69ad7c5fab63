"""What is said in a sound that arrives piece by piece, by pocketsphinx with the English model of its package.

A request is the next piece of a sequence's sound, of any length: 16-bit samples, little-endian, one channel, 16,000 per
second. The response has the utterances that a pause has ended, and what is recognised so far of the one after them::

    {"final": ["hello world"], "partial": "where do"}

The request that ends the sequence ends the last utterance as well. A row that cannot be read gets status 400 alone.
Clients of OpenAI's realtime API may send sound in other encodings and at other rates, and get text: one utterance after
the other, each with a space behind it.

A recogniser is about 100 MB of pocketsphinx's memory that nothing can write down. So a sequence's state is its sound
since the last pause (`listener.Listener`), from which any worker and any recogniser comes to the same words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from listener import Listener
from recognisers import Recognisers

from ts.handler_utils.audio import audio_of
from ts.sequence import SequenceCache

if TYPE_CHECKING:
    from ts.context import Context

#: 30 seconds (bytes): the others of a batch wait while a piece is heard, which takes up to half of its duration.
MOST_OF_A_PIECE = 960_000


class TranscribeHandler:
    """Lets each sequence's listener hear the pieces of its sound."""

    def initialize(self, context: Context) -> None:
        """Load the recognisers, and say how a listener is written."""
        config = context.model_yaml_config.get("handler") or {}
        self.recognisers = Recognisers(int(config.get("recognisers", 2)))
        SequenceCache(context, encoders={Listener: (Listener.to_dict, Listener.from_dict)})

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """Answer one batch, which has at most one request of each sequence."""
        return [self._hear(idx, context.body(idx) or b"", context) for idx in range(len(data))]

    def _hear(self, idx: int, sound: Any, context: Context) -> Any:
        if isinstance(sound, bytes | bytearray) and len(sound) > MOST_OF_A_PIECE:
            text = f"A piece has {len(sound)} bytes; {MOST_OF_A_PIECE} is the most. Send the sound in smaller pieces."
            context.fail(idx, text, 413)
            return None
        if event := context.get_request_header(idx, "realtime_event"):
            return self._transcribe(idx, sound, event, context)
        if not isinstance(sound, bytes | bytearray) or len(sound) % 2:
            context.fail(idx, "Send 16-bit samples, 16,000 per second, as bytes; their number is even.")
            return None
        listener = context.state.get(idx) or Listener()
        final = listener.hear(sound, self.recognisers)
        if context.is_end(idx):
            final += listener.finish()
        context.state[idx] = listener
        return {"final": final, "partial": listener.partial()}

    def _transcribe(self, idx: int, sound: Any, event: str, context: Context) -> str:
        """Answer an event of the realtime API with the utterances that it has ended."""
        listener = context.state.get(idx) or Listener()
        texts: list[str] = []
        if event == "append":
            try:
                samples, rate = audio_of(context, idx, sound)
            except ValueError as error:
                context.fail(idx, f"The sound cannot be read: {error}")
                return ""
            texts = listener.hear(listener.converted(samples, rate), self.recognisers)
        else:
            if event == "commit":
                texts = listener.finish()
            listener = listener.renewed()
        context.state[idx] = listener
        return "".join(f"{text} " for text in texts)
