"""A sentence that the synthesizer speaks: its audio, piece by piece, in the format that the client wants."""

from __future__ import annotations

from typing import Final

from torchserve_py.apis.realtime.pipeline_calls import PipelineCalls
from torchserve_py.apis.realtime.session_config import AudioFormat, media_type_of
from torchserve_py.core.jobs.parts import Part
from torchserve_py.endpoints.client_call import ClientCall
from torchserve_py.endpoints.failures import INTERNAL, EndpointError, Failure, handler_failure

_BAD_REQUEST: Final = 400


class SpokenSentence:
    """One sentence; the audio is made from `start` on."""

    def __init__(self, text: str, voice: str | None, audio: AudioFormat, calls: PipelineCalls) -> None:
        self._text = text
        self._voice = voice
        self._format = audio
        self._calls = calls
        self._call: ClientCall | None = None
        self._is_started = self._is_checked = False
        #: The first byte of a sample whose second one has not arrived.
        self._half = b""

    def start(self) -> None:
        """Begin, if it has not begun. Raises EndpointError: the synthesizer does not take it."""
        if not self._is_started and any(map(str.isalnum, self._text)):  # without words there is nothing to say
            self._call = self._calls.speak(self._text.strip(), self._voice, self._format)
        self._is_started = True

    async def next(self) -> bytes | None:
        """Return the next piece of audio, whole samples; None after the last. Raises EndpointError: there is none."""
        if self._call is None:
            return None
        part = await self._call.next_usable()
        if not self._is_checked:
            self._check(part)
        if not part.more:
            self._call = None
        audio = self._half + part.body
        whole = len(audio) - len(audio) % self._format.sample_size
        self._half = audio[whole:]
        return audio[:whole]

    def _check(self, first: Part) -> None:
        if first.status >= _BAD_REQUEST:
            raise EndpointError(handler_failure(first.status, bytes(first.body[:1000]).decode("utf-8", "replace")))
        given = next((value for name, value in first.headers if name.lower() == "content-type"), "")
        wanted = media_type_of(self._format)
        if given.replace(" ", "").lower() != wanted:
            message = f"The synthesizer has answered with {given[:100]!a}; the request's header accept is {wanted}."
            raise EndpointError(Failure(500, INTERNAL, message, "synthesizer_format"))
        self._is_checked = True

    def cancel(self) -> None:
        """Give up."""
        if self._call is not None:
            self._call.cancel()
