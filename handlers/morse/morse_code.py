"""Morse code as a sound.

python handlers/morse/morse_code.py TEXT FILE      FILE: 16-bit samples, little-endian, 8,000 per second
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

RATE: Final = 8_000
_LETTERS: Final = (
    "A .- B -... C -.-. D -.. E . F ..-. G --. H .... I .. J .--- K -.- L .-.. M -- N -. O --- P .--. Q --.- R .-. "
    "S ... T - U ..- V ...- W .-- X -..- Y -.-- Z --.."
)
CODES: Final = dict(zip(_LETTERS.split()[::2], _LETTERS.split()[1::2], strict=True))


class Keyed(NamedTuple):
    """A text as a sound.

    Attributes:
        sound: Samples from -1 to 1.
        ends: After how many samples it is certain that a letter, or a word (" "), has ended.
    """

    sound: np.ndarray[Any, Any]
    ends: list[tuple[int, str]]


def keyed(text: str, dot: float = 0.06, tone: float = 600.0, random: np.random.Generator | None = None) -> Keyed:
    """Return the sound of a text of capital letters and spaces, after a silence of three dots.

    Args:
        dot: How long a dot lasts, in seconds; all else is a multiple of it.
        tone: In hertz.
        random: Makes the lengths uneven by a tenth, as a person's are.
    """
    lengths, ends = [3.0], []  # silence and tone in turn, in dots

    def uneven(length: float) -> float:
        return length if random is None else length * random.uniform(0.9, 1.1)

    def before_end(dots: float) -> int:
        return round((sum(lengths) - dots) * dot * RATE)

    for word in text.split():
        for letter in word:
            for sign in CODES[letter]:
                lengths += [uneven(1 if sign == "." else 3), uneven(1)]
            lengths[-1] = uneven(3)
            ends.append((before_end(1), letter))
        lengths[-1] = uneven(7)
        ends.append((before_end(2), " "))
    key = np.repeat(np.arange(len(lengths)) % 2, np.rint(np.array(lengths) * dot * RATE).astype(int))
    turns = np.arange(len(key), dtype=np.float32) * np.float32(2 * np.pi * tone / RATE)
    return Keyed(key * np.sin(turns), ends)


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes((keyed(sys.argv[1]).sound * 16_000).astype("<i2").tobytes())
