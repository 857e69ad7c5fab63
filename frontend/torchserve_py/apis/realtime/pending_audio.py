"""Audio of a session that belongs to no utterance yet: it is kept until it is known whether somebody speaks."""

from torchserve_py.apis.realtime.session_config import AudioFormat


class PendingAudio:
    """The latest audio in one format; it begins ``offset`` seconds after the first audio of the session."""

    def __init__(self, audio_format: AudioFormat, offset: float = 0.0) -> None:
        self._format = audio_format
        self._offset = offset
        self._audio = bytearray()
        #: How many bytes came before those that are kept.
        self._begin = 0

    @property
    def end(self) -> float:
        """When the latest audio ends (seconds after the first audio of the session)."""
        return self._offset + self._format.seconds(self._begin + len(self._audio))

    def append(self, audio: bytes) -> None:
        """Add the next piece: whole samples."""
        self._audio += audio

    def take(self, until: float | None = None) -> bytes:
        """Return the audio before a moment, all if there is none, and forget it."""
        count = len(self._audio) if until is None else self._count(until)
        taken = bytes(self._audio[:count])
        self._forget(count)
        return taken

    def drop(self, until: float) -> None:
        """Forget the audio before a moment."""
        self._forget(self._count(until))

    def _count(self, until: float) -> int:
        samples = round((until - self._offset) * self._format.rate)
        return min(len(self._audio), max(0, samples * self._format.sample_size - self._begin))

    def _forget(self, count: int) -> None:
        del self._audio[:count]
        self._begin += count
