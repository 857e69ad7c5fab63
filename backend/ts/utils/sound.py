"""`Audio`: sound as a handler or a function with `serve` takes and returns it.

WAV files are read and written with Python's own library; other formats are read if the package soundfile is installed.
"""

from __future__ import annotations

import io
import wave
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np

_BITS_OF_A_BYTE: Final = 8
#: 8-bit samples of a WAV file have no sign.
_UNSIGNED: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Audio:
    """Samples between -1 and 1 in float32, of the shape [frames] or [frames, channels], and how many a second has."""

    samples: np.ndarray[Any, Any]
    rate: int

    @classmethod
    def from_bytes(cls, data: bytes | bytearray) -> Audio:
        """Return the sound in a file. Raises ValueError: it cannot be read."""
        import numpy as np

        try:
            with wave.open(io.BytesIO(data)) as file:
                width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
                frames = file.readframes(file.getnframes())
        except (wave.Error, EOFError):
            return cls._of_another_format(data)
        if width == 3:
            triples = np.frombuffer(frames, np.uint8).reshape(-1, 3)
            values = np.zeros((len(triples), 4), np.uint8)
            values[:, 1:] = triples
            numbers, width = values.view("<i4")[:, 0], 4
        else:
            numbers = np.frombuffer(frames, "u1" if width == _UNSIGNED else f"<i{width}")
        half = float(1 << (width * _BITS_OF_A_BYTE - 1))
        samples = numbers.astype(np.float32) / np.float32(half) - np.float32(width == _UNSIGNED)
        return cls(samples if channels == 1 else samples.reshape(-1, channels), rate)

    @classmethod
    def _of_another_format(cls, data: bytes | bytearray) -> Audio:
        try:
            import soundfile
        except (ImportError, OSError):
            raise ValueError("it is not a WAV file with PCM samples, and other formats need soundfile") from None
        try:
            samples, rate = soundfile.read(io.BytesIO(data), dtype="float32")
        except soundfile.LibsndfileError as error:
            raise ValueError(f"it is not a sound file that can be read: {error}") from None
        return cls(samples, int(rate))

    def to_bytes(self) -> bytes:
        """Return the sound as a WAV file with 16 bits a sample."""
        import numpy as np

        samples = np.asarray(self.samples, np.float32)
        out = io.BytesIO()
        with wave.open(out, "wb") as file:
            file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes((np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes())
        return out.getvalue()
