"""The audio that clients of OpenAI's realtime API send (``docs/realtime.md``), as samples."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

Samples = np.ndarray[Any, np.dtype[np.float32]]


def decode_audio(audio: bytes | bytearray, encoding: str) -> Samples:
    """Return the samples of a piece of audio, between -1 and 1.

    Args:
        audio: Bytes of one channel.
        encoding: ``pcm16`` (16 bits, little-endian), ``g711_ulaw`` or ``g711_alaw``; the request header
            ``realtime_encoding`` names it.

    Raises:
        ValueError: The encoding is none of these, or the audio ends within a sample.
    """
    if encoding == "pcm16":
        samples: Samples = np.frombuffer(audio, "<i2").astype(np.float32) / np.float32(32768)
        return samples
    table = _G711.get(encoding)
    if table is None:
        raise ValueError(f"{encoding!r} is none of pcm16, {', '.join(_G711)}")
    return table[np.frombuffer(audio, np.uint8)]


def _mu_law() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)
    magnitude = (((code & 0x0F).astype(np.int32) << 3) + 0x84 << ((code & 0x70) >> 4)) - 0x84
    return (np.where(code & 0x80, -magnitude, magnitude) / 32768).astype(np.float32)


def _a_law() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = ((code & 0x70) >> 4).astype(np.int32), (code & 0x0F).astype(np.int32) << 4
    magnitude = np.where(exponent == 0, mantissa + 8, mantissa + 0x108 << np.maximum(exponent - 1, 0))
    return (np.where(code & 0x80, magnitude, -magnitude) / 32768).astype(np.float32)


_G711: Final = {"g711_ulaw": _mu_law(), "g711_alaw": _a_law()}
