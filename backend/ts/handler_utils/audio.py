"""Audio as clients of OpenAI's realtime API send and get it (``docs/speech.md``), as samples at the rate of a model."""

from functools import lru_cache
from math import gcd
from typing import Any, Final

import numpy as np

from ts.context import Context
from ts.protocol.messages import AUDIO_RATES

Samples = np.ndarray[Any, np.dtype[np.float32]]


def audio_of(context: Context, idx: int, body: Any) -> tuple[Samples, int]:
    """Return the samples of the piece of audio that a step brings, and how many of them are a second.

    Raises ValueError: the body is no audio, or the step's headers do not tell its encoding and rate.
    """
    encoding = context.get_request_header(idx, "realtime_encoding") or ""
    rate = context.get_request_header(idx, "realtime_rate") or ""
    if not rate.isdecimal() or int(rate) not in AUDIO_RATES:
        raise ValueError(
            f"realtime_rate: {rate!r} is no number of samples per second from {AUDIO_RATES[0]} to {AUDIO_RATES[-1]}"
        )
    if not isinstance(body, bytes | bytearray):
        raise ValueError(f"audio is bytes, not {type(body).__name__}")
    return decode_audio(body, encoding), int(rate)


def decode_audio(audio: bytes | bytearray, encoding: str) -> Samples:
    """Return the samples of a piece of audio of one channel, between -1 and 1.

    The encoding is ``pcm16`` (16 bits, little-endian), ``g711_ulaw`` or ``g711_alaw``; the request header
    ``realtime_encoding`` names it. Raises ValueError: it is none of these, or the audio ends within a sample.
    """
    if encoding == "pcm16":
        samples: Samples = np.frombuffer(audio, "<i2").astype(np.float32) / np.float32(32768)
        return samples
    table = _G711.get(encoding)
    if table is None:
        raise ValueError(f"{encoding!r} is none of pcm16, {', '.join(_G711)}")
    return table[np.frombuffer(audio, np.uint8)]


def encode_audio(samples: Samples, encoding: str) -> bytes:
    """Return samples of one channel, between -1 and 1, in an encoding that `decode_audio` reads.

    Raises ValueError: it is none of these.
    """
    if encoding == "pcm16":
        return (np.clip(samples, -1, 1) * 32767).round().astype("<i2").tobytes()
    table = _G711.get(encoding)
    if table is None:
        raise ValueError(f"{encoding!r} is none of pcm16, {', '.join(_G711)}")
    codes = np.argsort(table, kind="stable")
    values = table[codes]
    nearest = np.searchsorted((values[1:] + values[:-1]) / 2, samples)
    return codes[nearest].astype(np.uint8).tobytes()


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

#: Samples of the lower rate on either side of a moment from which the sample at this moment is computed.
_REACH: Final = 16


class Resampler:
    """Brings audio that arrives piece by piece to another rate; what comes out does not depend on the cuts.

    Rates are samples per second from 8,000 to 48,000, another raises ValueError; frequencies above half of either are
    filtered out. ``rest`` and ``offset`` are the attributes of a `Resampler` that goes on here, for states that are
    stored.
    """

    def __init__(self, rate: int, wanted: int, rest: bytes | None = None, offset: int = 0) -> None:
        for given in (rate, wanted):
            if given not in AUDIO_RATES:
                raise ValueError(f"{given} samples per second; rates are from {AUDIO_RATES[0]} to {AUDIO_RATES[-1]}")
        common = gcd(rate, wanted)
        self._up, self._down = wanted // common, rate // common
        self._filters = _filters(self._up, self._down)
        span = self._filters.shape[1]
        #: Samples (float32) that the next ones are computed from, and the place of the next one among them [1 / up].
        self.rest = bytes(4 * (span // 2 - 1)) if rest is None else rest
        self.offset = offset

    def hear(self, samples: Samples) -> Samples:
        """Return the samples at the wanted rate that are known with this piece."""
        if self._up == self._down:
            return samples
        known = np.concatenate([np.frombuffer(self.rest, np.float32), samples])
        span = self._filters.shape[1]
        places = np.arange(self.offset, max(0, len(known) - span + 1) * self._up, self._down)
        if not len(places):
            self.rest = known.tobytes()
            return np.zeros(0, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(known, span)[places // self._up]
        heard: Samples = np.einsum("ij,ij->i", windows, self._filters[places % self._up]).astype(np.float32)
        following = int(places[-1]) + self._down
        begin = min(following // self._up, len(known))
        self.rest, self.offset = known[begin:].tobytes(), following - begin * self._up
        return heard

    def finish(self) -> Samples:
        """Return the last samples: those that are known if silence follows."""
        return self.hear(np.zeros(self._filters.shape[1] // 2, np.float32))


@lru_cache(maxsize=8)
def _filters(up: int, down: int) -> Samples:
    """Return the low-pass filter for each place between two samples [up, samples]: a sinc under a Kaiser window."""
    scale = max(up, down) / up  # samples of the input for one of the lower rate
    half = int(np.ceil(_REACH * scale))
    moments = np.arange(-half + 1, half + 1)[None, :] - np.arange(up)[:, None] / up
    window = np.i0(8 * np.sqrt(np.maximum(0, 1 - (moments / (half + 1)) ** 2))) / np.i0(8)
    filters = np.sinc(0.95 * moments / scale) * window
    filters /= filters.sum(axis=1, keepdims=True)
    normal: Samples = filters.astype(np.float32)
    return normal


#: The encodings by the media types that a request's header ``accept`` can have.
_RAW: Final = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}


def raw_audio(samples: Samples, rate: int, accept: str) -> tuple[bytes, str] | None:
    """Return samples in the form that a header asks for, such as ``audio/pcm;rate=24000``, and the media type.

    The samples have the shape [frames] or [frames, channels]; of several channels the mean is returned. None: the
    header asks for something else than raw audio.
    """
    media_type, _, wanted = accept.replace(" ", "").lower().partition(";rate=")
    encoding = _RAW.get(media_type)
    if encoding is None or not wanted.isdecimal() or int(wanted) not in AUDIO_RATES:
        return None
    mono: Samples = np.asarray(samples, np.float32)
    if mono.ndim > 1:
        mono = mono.mean(axis=1)
    if rate != int(wanted):
        resampler = Resampler(rate, int(wanted))
        seconds = [resampler.hear(mono[begin : begin + rate]) for begin in range(0, len(mono), rate)]
        mono = np.concatenate([*seconds, resampler.finish()])
    return encode_audio(mono, encoding), f"{media_type};rate={wanted}"
