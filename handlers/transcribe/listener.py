"""One sequence's sound, heard frame by frame, and the words in it."""

from __future__ import annotations

from typing import Any

import numpy as np
from pocketsphinx import Endpointer
from recognisers import Recogniser, Recognisers

from ts.handler_utils.audio import Resampler, Samples

RATE = 16_000

#: 30 ms of sound (bytes). All sound passes in such frames, so that it does not matter in which pieces it came.
FRAME = 960
SECOND = 32_000
#: Of silence, only the last 0.3 s are kept, within which the endpointer notices that speech starts.
ONSET = 10 * FRAME
MOST_SILENCE = SECOND
#: After so much speech without a pause the utterance ends all the same.
MOST_SPEECH = 15 * SECOND


class Listener:
    """Turns sound into utterances.

    Its state is the sound since the last pause and the cepstral mean of what it heard before. The endpointer and the
    recogniser, which no store can keep, follow from these: after the loss of a worker, or of the recogniser to another
    listener, the sound since the last pause is heard again.
    """

    def __init__(self, sound: bytes = b"", mean: str | None = None, rest: bytes | None = None, offset: int = 0) -> None:
        self._sound = bytearray(sound)
        self._mean = mean
        #: What a `Resampler` goes on with, if the sound comes at another rate.
        self._rest, self._offset = rest, offset
        self.lose_recogniser()

    def to_dict(self) -> dict[str, Any]:
        """Return what a store keeps."""
        return {"sound": bytes(self._sound), "mean": self._mean, "rest": self._rest, "offset": self._offset}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Listener:
        """Return the listener that `to_dict` wrote down."""
        return cls(**stored)

    def renewed(self) -> Listener:
        """Return a listener for a new sound of the same voice and microphone."""
        return Listener(mean=self._mean)

    def lose_recogniser(self) -> None:
        """Note that another listener has got the recogniser: the sound since the last pause is to be heard again."""
        self._heard = 0
        self._endpointer = Endpointer()
        self._recogniser: Recogniser | None = None

    def hear(self, sound: bytes | bytearray, recognisers: Recognisers) -> list[str]:
        """Go on with the sound; return the utterances that pauses have ended."""
        self._sound += sound
        texts: list[str] = []
        while self._heard + FRAME <= len(self._sound):
            frame = bytes(self._sound[self._heard : self._heard + FRAME])
            self._heard += FRAME
            texts += self._hear_frame(frame, recognisers)
        return texts

    def converted(self, samples: Samples, rate: int) -> bytes:
        """Return the next piece of a sound at another rate as `hear` takes it."""
        resampler = Resampler(rate, RATE, self._rest, self._offset)
        heard = resampler.hear(samples)
        self._rest, self._offset = resampler.rest, resampler.offset
        return (np.clip(heard, -1, 1) * 32767).astype("<i2").tobytes()

    def finish(self) -> list[str]:
        """End the utterance, if there is one, because the sound is over; return its text."""
        return self._end_utterance(bytes(self._sound[self._heard :]))

    def partial(self) -> str:
        """Return what is recognised so far of the utterance that goes on."""
        return "" if self._recogniser is None else self._recogniser.text()

    def _hear_frame(self, frame: bytes, recognisers: Recognisers) -> list[str]:
        speech = self._endpointer.process(frame)
        if speech is None:
            if self._heard >= MOST_SILENCE:
                del self._sound[: self._heard - ONSET]
                self.lose_recogniser()
            return []
        if self._recogniser is None:
            self._recogniser = recognisers.lend(self, self._mean)
        self._recogniser.hear(speech)
        return self._end_utterance() if not self._endpointer.in_speech or self._heard >= MOST_SPEECH else []

    def _end_utterance(self, rest: bytes = b"") -> list[str]:
        """End the utterance, if there is one, after the rest of a frame, and begin anew behind it; return its text."""
        if self._recogniser is None:
            return []
        if self._endpointer.in_speech and (speech := self._endpointer.end_stream(rest or bytes(2))):
            self._recogniser.hear(speech)
        self._mean = self._recogniser.end()
        text = self._recogniser.text()
        del self._sound[: self._heard]
        self.lose_recogniser()
        return [text] if text else []
