"""Reads Morse code from a sound that arrives piece by piece: a state-space model whose state is kept per sequence.

A request is the next piece of a sequence's sound, of any length: 16-bit samples, little-endian, one channel, 8,000 per
second. The response is the text of the characters that the piece completes, such as ``SO``; a space ends a word.

The rows of a batch belong to different sequences. Their states, which stay the same size however long the sound is, are
gathered from the arena at once; the model takes all frames of all pieces in one call; and the next states go back at
once. A row that cannot be read gets status 400 alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from morse_model import CHARACTERS, FRAME  # type: ignore[import-not-found]  # beside this file

from ts.sequence.arena import Arena, Field
from ts.torch_handler.base_handler import BaseHandler

if TYPE_CHECKING:
    from ts.context import Context

#: What a sample of 16 bits is divided by.
_LOUDEST: Final = 32_768.0
#: The longest piece: a minute.
_MOST_FRAMES: Final = 3_000


class MorseHandler(BaseHandler):
    """Runs the model on the next piece of each sequence's sound."""

    def initialize(self, context: Context) -> None:
        """Load model.py and its weights as BaseHandler does, and make room for the states."""
        super().initialize(context)
        fields = {
            "layers": Field((*self.model.state_shape, 2)),  # complex numbers
            "rest": Field((FRAME,)),  # the samples that do not fill a frame yet, at the end
            "rest_length": Field((), torch.int32),
            "heard": Field((len(CHARACTERS),)),  # the sum of the scores since a character has begun to show
        }
        self.arena = Arena(context, fields, device=self.device)

    def handle(self, data: list[dict[str, Any]], context: Context) -> list[Any]:
        """One piece of every sequence in the batch. Returns one answer per row, in order."""
        answers: list[Any] = [""] * len(data)
        pieces: dict[int, np.ndarray[Any, Any]] = {}
        for idx in range(len(data)):
            try:
                pieces[idx] = _samples(context.body(idx))
            except ValueError as error:
                context.fail(idx, str(error))
        if pieces:
            before = self.arena.gather([context.state.get(idx) for idx in pieces])
            texts, after = self._read(list(pieces.values()), before)
            for idx, text, state in zip(pieces, texts, self.arena.scatter(after), strict=True):
                answers[idx], context.state[idx] = text, state
        return answers

    def _read(
        self, pieces: list[np.ndarray[Any, Any]], before: dict[str, torch.Tensor]
    ) -> tuple[list[str], dict[str, torch.Tensor]]:
        """Return what each piece completes, and the next states."""
        rest, rest_lengths = before["rest"].cpu().numpy(), before["rest_length"].tolist()
        sounds = [
            np.concatenate([rest[row, FRAME - length :], piece])
            for row, (length, piece) in enumerate(zip(rest_lengths, pieces, strict=True))
        ]
        counts = [len(sound) // FRAME for sound in sounds]
        frames = np.zeros((len(sounds), max(1, *counts), FRAME), dtype=np.float32)
        left = np.zeros((len(sounds), FRAME), dtype=np.float32)
        for row, (sound, count) in enumerate(zip(sounds, counts, strict=True)):
            frames[row, :count] = sound[: count * FRAME].reshape(count, FRAME)
            end = sound[count * FRAME :]
            left[row, FRAME - len(end) :] = end
        with torch.inference_mode():
            layers = torch.view_as_complex(before["layers"].contiguous())
            lengths = torch.tensor(counts, device=self.device)
            scores, layers = self.model(torch.from_numpy(frames).to(self.device), layers, lengths)
            scores = scores.softmax(-1).cpu()
        heard = before["heard"].cpu()
        texts = [_characters(scores[row, :count], heard[row]) for row, count in enumerate(counts)]
        rest_length = [len(sound) - count * FRAME for sound, count in zip(sounds, counts, strict=True)]
        return texts, {
            "layers": torch.view_as_real(layers),
            "rest": torch.from_numpy(left).to(self.device),
            "rest_length": torch.tensor(rest_length, dtype=torch.int32, device=self.device),
            "heard": heard.to(self.device),
        }


def _characters(scores: torch.Tensor, heard: torch.Tensor) -> str:
    """Return the characters that end in these frames; ``heard`` has what shows before them, and then behind them.

    For some frames the model says which character has ended. It is the one with the greatest score of all these frames.
    """
    text = ""
    for score in scores:
        if score.argmax() > 0:
            heard += score
        elif heard.any():
            text += CHARACTERS[1 + int(heard[1:].argmax())]
            heard.zero_()
    return text


def _samples(body: Any) -> np.ndarray[Any, Any]:
    """Return samples from -1 to 1. Raises ValueError: the body is no piece of a sound."""
    if not isinstance(body, bytes | bytearray):
        raise ValueError("Expected 16-bit samples as the body. Send them with Content-Type: application/octet-stream.")
    if len(body) % 2:
        raise ValueError(f"Expected 16-bit samples, and the body has {len(body)} bytes, an odd number.")
    if len(body) > 2 * FRAME * _MOST_FRAMES:
        raise ValueError(f"A piece has at most {FRAME * _MOST_FRAMES:,} samples, and this one has {len(body) // 2:,}.")
    return np.frombuffer(body, dtype="<i2").astype(np.float32) / _LOUDEST
