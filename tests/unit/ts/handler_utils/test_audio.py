"""Audio in each encoding of the realtime API, as samples."""

import numpy as np
import pytest

from ts.handler_utils.audio import Resampler, decode_audio, encode_audio, raw_audio

#: Values of ITU-T G.711 by code, scaled to 16 bits.
MU_LAW = {0x00: -32124, 0x0F: -16764, 0x7F: 0, 0x80: 32124, 0xFE: 8, 0xFF: 0}
A_LAW = {0x2A: -32256, 0x55: -8, 0xAA: 32256, 0xD5: 8, 0x80: 5504}


def test_pcm() -> None:
    samples = decode_audio(b"\x00\x80\x00\x00\xff\x7f", "pcm16")
    assert samples.dtype == np.float32
    assert samples.tolist() == [-1, 0, 32767 / 32768]


@pytest.mark.parametrize(("encoding", "values"), [("g711_ulaw", MU_LAW), ("g711_alaw", A_LAW)])
def test_g711(encoding: str, values: dict[int, int]) -> None:
    samples = decode_audio(bytes(values), encoding)
    assert samples.dtype == np.float32
    assert (samples * 32768).tolist() == list(values.values())
    table = np.sort(decode_audio(bytes(range(256)), encoding))
    assert np.allclose(table, -table[::-1]), "both signs have the same values"
    assert len(np.unique(table)) == (255 if encoding == "g711_ulaw" else 256), "μ-law has two zeros"


def test_what_cannot_be_read() -> None:
    with pytest.raises(ValueError, match="multiple of"):
        decode_audio(b"abc", "pcm16")
    with pytest.raises(ValueError, match="'mp3' is none of pcm16, g711_ulaw, g711_alaw"):
        decode_audio(b"abc", "mp3")


def wave(frequency: float, rate: int, seconds: float = 1.0) -> np.ndarray:
    return np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate).astype(np.float32)


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
def test_a_tone_sounds_the_same_at_another_rate(rate: int) -> None:
    heard = Resampler(rate, 16_000).hear(wave(1000, rate))
    assert heard.dtype == np.float32
    assert abs(len(heard) - 16_000) < 40
    steady = slice(200, len(heard) - 200)
    assert np.abs(heard - wave(1000, 16_000, 2)[: len(heard)])[steady].max() < 2e-3


@pytest.mark.parametrize("rate", [24_000, 44_100])
def test_what_the_wanted_rate_cannot_have_is_filtered_out(rate: int) -> None:
    heard = Resampler(rate, 16_000).hear(wave(9_500, rate))
    assert np.abs(heard[200:-200]).max() < 0.01


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100])
def test_how_a_sound_is_cut_does_not_matter(rate: int) -> None:
    sound = np.random.default_rng(3).normal(size=rate // 4).astype(np.float32)
    whole = Resampler(rate, 16_000).hear(sound)
    pieces, begin, resampler = [], 0, Resampler(rate, 16_000)
    for size in [1, 2, 3, 50, 0, 7, 900, 1] * 40:
        pieces.append(resampler.hear(sound[begin : begin + size]))
        resampler = Resampler(rate, 16_000, resampler.rest, resampler.offset)
        begin += size
    pieces.append(resampler.hear(sound[begin:]))
    assert np.array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("encoding", ["pcm16", "g711_ulaw", "g711_alaw"])
def test_what_is_encoded_is_decoded(encoding: str) -> None:
    samples = np.linspace(-1.2, 1.2, 999, dtype=np.float32)
    decoded = decode_audio(encode_audio(samples, encoding), encoding)
    assert np.abs(decoded - np.clip(samples, -1, 1)).max() < 0.035
    codes = bytes(range(256))
    if encoding != "pcm16":
        assert np.array_equal(
            decode_audio(encode_audio(decode_audio(codes, encoding), encoding), encoding), decode_audio(codes, encoding)
        )
    with pytest.raises(ValueError, match="none of pcm16"):
        encode_audio(samples, "mp3")


@pytest.mark.parametrize(("accept", "size"), [("audio/pcm;rate=24000", 2), ("audio/PCMU; rate=8000", 1)])
def test_sound_in_the_form_that_a_request_accepts(accept: str, size: int) -> None:
    rate = int(accept.partition("=")[2])
    tone = np.sin(2 * np.pi * 440 * np.arange(33_075) / 22_050).astype(np.float32)
    found = raw_audio(np.stack([tone, tone], axis=1), 22_050, accept)
    assert found is not None
    body, media_type = found
    assert media_type == accept.replace(" ", "").lower()
    assert len(body) == pytest.approx(1.5 * rate * size, rel=0.001)
    samples = decode_audio(body, "pcm16" if size == 2 else "g711_ulaw")[rate // 10 : -rate // 10]
    strongest = np.abs(np.fft.rfft(samples)).argmax() * rate / len(samples)
    assert strongest == pytest.approx(440, abs=1)


@pytest.mark.parametrize("accept", ["audio/wav", "*/*", "audio/pcm", "audio/pcm;rate=7", "audio/pcm;rate=x"])
def test_what_asks_for_no_raw_sound(accept: str) -> None:
    assert raw_audio(np.zeros(10, np.float32), 16_000, accept) is None
