"""A recogniser of Morse code: two state-space layers over the spectrum of the sound."""

from __future__ import annotations

import torch
from state_space import StateSpace  # type: ignore[import-not-found]  # beside this file
from torch import nn

#: Samples in a frame: 20 ms at 8,000 per second.
FRAME = 160
#: What a frame may say: nothing new, the end of a word, or which letter has ended.
CHARACTERS = ["", " ", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
BINS = FRAME // 2 + 1


class MorseRecogniser(nn.Module):
    """Says for each frame of a sound which letter has ended in it."""

    def __init__(self, channels: int = 48, order: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.enter = nn.Linear(BINS, channels)
        self.layers = nn.ModuleList(StateSpace(channels, order) for _ in range(layers))
        self.norm = nn.LayerNorm(channels)
        self.says = nn.Linear(channels, len(CHARACTERS))
        #: Of the state of one sound: complex numbers.
        self.state_shape = (layers, channels, order)

    def forward(
        self, sound: torch.Tensor, state: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores of characters [rows, frames, characters], and the next state.

        Args:
            sound: Samples from -1 to 1, [rows, frames, FRAME].
            state: [rows, *state_shape], complex; zeros before a sound begins.
            lengths: How many frames of each row count.
        """
        values, states = self._heard(sound), []
        for layer, own in zip(self.layers, state.unbind(1), strict=True):
            values, after = layer(values, own, lengths)
            states.append(after)
        return self.says(self.norm(values)), torch.stack(states, 1)

    def whole(self, sound: torch.Tensor) -> torch.Tensor:
        """Return scores for sounds from their beginning; training needs no more."""
        values = self._heard(sound)
        for layer in self.layers:
            values = layer.whole(values)
        return self.says(self.norm(values))

    def _heard(self, sound: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.rfft(sound * torch.hann_window(FRAME, device=sound.device)).abs()
        return self.enter(torch.log1p(100 * spectrum / FRAME))
