"""A few recognisers for many listeners: each has one while it hears somebody speak."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Protocol

import pocketsphinx

pocketsphinx.set_loglevel("FATAL")


class Speaker(Protocol):
    """Whoever uses a recogniser."""

    def lose_recogniser(self) -> None:
        """Note that another speaker has got the recogniser."""


class Recogniser:
    """One decoder of pocketsphinx, about 100 MB, and who uses it."""

    def __init__(self) -> None:
        self._decoder = pocketsphinx.Decoder()
        self._is_hearing = False
        self.user: Callable[[], Speaker | None] = lambda: None

    def begin(self, mean: str) -> None:
        """Begin an utterance; what came before leaves no trace.

        Args:
            mean: The cepstral mean of the sound, which the speaker's voice and microphone determine.
        """
        if self._is_hearing:
            self._decoder.end_utt()
        self._decoder.reinit_feat()  # forgets the noise of the sound before
        self._decoder.set_cmn(mean)
        self._decoder.start_utt()
        self._is_hearing = True

    def hear(self, sound: bytes) -> None:
        """Go on with the utterance."""
        self._decoder.process_raw(sound)

    def text(self) -> str:
        """Return what is recognised so far."""
        found = self._decoder.hyp()
        return "" if found is None else str(found.hypstr)

    def end(self) -> str:
        """End the utterance and give the recogniser back; return the cepstral mean of the sound."""
        self._decoder.end_utt()
        self._is_hearing = False
        self.user = lambda: None
        return str(self._decoder.get_cmn(True))

    def mean(self) -> str:
        """Return the cepstral mean that the model expects."""
        return str(self._decoder.get_cmn(False))


class Recognisers:
    """Lends recognisers; if none is free, the one that was lent longest ago changes hands.

    Args:
        count: How many there are.

    Raises:
        ValueError: ``count`` is less than 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"handler: recognisers: {count}; at least 1 is needed")
        self._all = [Recogniser() for _ in range(count)]  # the one that was lent longest ago first
        self._usual_mean = self._all[0].mean()

    def lend(self, speaker: Speaker, mean: str | None) -> Recogniser:
        """Return a recogniser that has begun an utterance; ``mean`` as for `Recogniser.begin`, None if unknown."""
        lent = next((each for each in self._all if each.user() is None), self._all[0])
        if (before := lent.user()) is not None:
            before.lose_recogniser()
        self._all.remove(lent)
        self._all.append(lent)
        lent.user = weakref.ref(speaker)
        lent.begin(mean or self._usual_mean)
        return lent
