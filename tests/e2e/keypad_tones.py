"""The sound of a telephone's keys, for the handler in ``handlers/keypad``."""

import base64

import numpy as np
from handlers.keypad.keypad_handler import COLUMNS, KEYS, ROWS


def tones(keys: str, rate: int = 24_000) -> bytes:
    """Return the sound of some keys as pcm16: 100 ms each, with 50 ms of silence behind it."""
    time = np.arange(rate // 10) / rate
    sounds = []
    for key in keys:
        row, column = divmod(KEYS.index(key), len(COLUMNS))
        sounds.append(sum(0.3 * np.sin(2 * np.pi * tone * time) for tone in (ROWS[row], COLUMNS[column])))
        sounds.append(np.zeros(rate // 20))
    return (np.concatenate(sounds) * 32767).astype("<i2").tobytes()


def pieces(sound: bytes, size: int) -> list[str]:
    """Return a sound in pieces of so many bytes, in base64."""
    return [base64.b64encode(sound[begin : begin + size]).decode() for begin in range(0, len(sound), size)]
