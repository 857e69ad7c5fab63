"""Transcribes the tones of a telephone's keypad, as the audio arrives: a small handler for OpenAI's realtime API.

A key sounds as two tones at once, one for its row and one for its column. The audio is cut into blocks of 20 ms; a key
is pressed when the same two tones are the strongest ones in two blocks running, and released with a block without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ts.handler_utils.audio import audio_of

if TYPE_CHECKING:
    from ts.context import Context

Array = np.ndarray[Any, np.dtype[np.float64]]

ROWS: Final = (697, 770, 852, 941)  # Hz
COLUMNS: Final = (1209, 1336, 1477, 1633)  # Hz
KEYS: Final = "123A456B789C*0#D"
BLOCKS_PER_SECOND: Final = 50
#: The part of a block's energy that the two tones of a key have at least, and that each of them has.
PURITY, SHARE = 0.7, 0.2
#: Below this mean square (1 is the loudest square wave) a block is silent.
SILENCE: Final = 1e-5


class KeypadHandler:
    """Keeps, for each sequence, the audio of an unfinished block, the key that sounds, and since how many blocks."""

    def initialize(self, context: Context) -> None:
        """There is nothing to load."""

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[str]:
        """Answer one batch, which has at most one event of each session."""
        return [self._event(idx, context) for idx in range(len(data))]

    def _event(self, idx: int, context: Context) -> str:
        """Return the keys that were recognized with this piece of audio, or "" at the end of an item."""
        if context.get_request_header(idx, "realtime_event") != "append":  # commit, or clear
            context.state[idx] = {"rest": b"", "key": "", "blocks": 0}
            return ""
        try:
            samples, rate = audio_of(context, idx, context.body(idx) or b"")
        except ValueError as error:
            context.fail(idx, f"The sound cannot be read: {error}")
            return ""
        state = context.state.get(idx) or {"rest": b"", "key": "", "blocks": 0}
        samples = np.concatenate([np.frombuffer(state["rest"], np.float32), samples])
        size = rate // BLOCKS_PER_SECOND
        whole = len(samples) - len(samples) % size
        pressed = "".join(_press(state, key) for key in keys_in(samples[:whole].reshape(-1, size), rate))
        context.state[idx] = {**state, "rest": samples[whole:].tobytes()}
        return pressed


def keys_in(blocks: Array, rate: int) -> list[str]:
    """Return the key that sounds in each block [blocks, samples], or ""."""
    if not len(blocks):
        return []
    moments = np.arange(blocks.shape[1]) / rate
    waves = np.exp(-2j * np.pi * np.outer(ROWS + COLUMNS, moments))
    strengths = 2 * np.abs(blocks @ waves.T / blocks.shape[1]) ** 2  # mean squares of the tones
    energy = np.mean(blocks**2, axis=1)
    rows, columns = strengths[:, : len(ROWS)], strengths[:, len(ROWS) :]
    row, column = rows.max(axis=1), columns.max(axis=1)
    sounds = (energy > SILENCE) & (row + column > PURITY * energy) & (np.minimum(row, column) > SHARE * energy)
    places = rows.argmax(axis=1) * len(COLUMNS) + columns.argmax(axis=1)
    return [KEYS[place] if is_key else "" for place, is_key in zip(places, sounds, strict=True)]


def _press(state: dict[str, Any], key: str) -> str:
    """Take the key of the next block; return the key if this block makes it pressed."""
    state["blocks"] = state["blocks"] + 1 if key and key == state["key"] else 1
    state["key"] = key
    return key if state["blocks"] == 2 and key else ""
