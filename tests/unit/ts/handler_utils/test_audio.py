"""Audio in each encoding of the realtime API, as samples."""

from __future__ import annotations

import numpy as np
import pytest

from ts.handler_utils.audio import decode_audio

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
