"""When a user speaks: decides from the probabilities of speech where an utterance starts and ends."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

#: Speech goes on while its probability is not lower than the threshold by more than this.
_HYSTERESIS: Final = 0.15
#: Milliseconds by which a sum of windows may miss what it is.
_ROUNDING: Final = 1e-3


class TurnDetection(NamedTuple):
    """The settings of OpenAI's ``server_vad``; times are in milliseconds."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    create_response: bool = True
    interrupt_response: bool = True

    def described(self) -> dict[str, object]:
        """Return the settings as the session shows them."""
        return {"type": "server_vad", **self._asdict(), "idle_timeout_ms": None}


class SpeechStarted(NamedTuple):
    """An utterance starts, ``at`` seconds after the first audio."""

    at: float


class SpeechStopped(NamedTuple):
    """The utterance has ended, ``at`` seconds after the first audio."""

    at: float


class TurnDetector:
    """Finds utterances in a sound whose first window begins ``offset`` seconds after the first audio."""

    def __init__(self, offset: float = 0.0) -> None:
        #: The moment up to which it has heard the sound: a window that is not complete yet begins there.
        self.now = offset
        self._silent = 0.0
        self.is_speech = False

    def skip_to(self, now: float) -> None:
        """Go on at a moment (seconds after the first audio): what came before was not heard."""
        self.now = now

    def hear(
        self, probabilities: Sequence[float], window: float, settings: TurnDetection
    ) -> Iterator[SpeechStarted | SpeechStopped]:
        """Yield what happens in the next windows, each of ``window`` seconds."""
        for probability in probabilities:
            began = self.now
            self.now += window
            if not self.is_speech:
                if probability >= settings.threshold:
                    self.is_speech, self._silent = True, 0.0
                    yield SpeechStarted(began)
                continue
            self._silent = 0.0 if probability >= settings.threshold - _HYSTERESIS else self._silent + window
            if self._silent and self._silent * 1000 + _ROUNDING >= settings.silence_duration_ms:
                self.is_speech = False
                yield SpeechStopped(self.now)
