"""A state-space layer, which reads a series piece by piece and keeps a state of a fixed size between.

The layer is a linear recurrence of many small states, x' = A x + B u and y = Re(C x) + D u, with a diagonal A (S4D: Gu
et al., "On the Parameterization and Initialization of Diagonal State Space Models", 2022). As it is linear, it takes
all frames of a piece at once, as a convolution, and adds what the state before still has to say.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class StateSpace(nn.Module):
    """One layer: a linear recurrence for each of ``channels``, with ``order`` complex numbers of state each."""

    def __init__(self, channels: int, order: int) -> None:
        super().__init__()
        steps = torch.rand(channels, 1) * (math.log(0.3) - math.log(0.01)) + math.log(0.01)
        self.log_step = nn.Parameter(steps)
        self.log_decay = nn.Parameter(torch.full((channels, order), math.log(0.5)))
        self.turn = nn.Parameter(math.pi * torch.arange(order).repeat(channels, 1).float())
        self.out = nn.Parameter(torch.randn(channels, order, 2) / math.sqrt(order))
        self.through = nn.Parameter(torch.ones(channels))
        self.norm = nn.LayerNorm(channels)
        self.mix = nn.Linear(channels, 2 * channels)

    def forward(
        self, inputs: torch.Tensor, state: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs [rows, frames, channels], and the state of each row behind its own last frame.

        Args:
            inputs: [rows, frames, channels].
            state: [rows, channels, order], complex.
            lengths: How many frames of each row count; what stands behind them is padding.
        """
        normed, powers, enter = self.norm(inputs), self._powers(inputs.shape[1] + 1), self._enter()
        before = 2 * torch.einsum("tcn,rcn->rtc", powers[1:], self._out() * state).real
        outputs = self._mixed(normed, self._convolved(normed) + before)
        # The state after n frames: A^n x + the sum of A^(n - 1 - k) B u_k.
        left = lengths[:, None] - 1 - torch.arange(inputs.shape[1], device=inputs.device)
        weighed = powers[left.clamp(min=0)] * (left >= 0)[:, :, None, None]
        after = powers[lengths] * state + enter * torch.einsum("rtcn,rtc->rcn", weighed, normed.to(weighed.dtype))
        return inputs + outputs, after

    def whole(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs for sounds from their beginning."""
        normed = self.norm(inputs)
        return inputs + self._mixed(normed, self._convolved(normed))

    def _powers(self, count: int) -> torch.Tensor:
        """Return the first powers of A [count, channels, order]; A is the exponential of what it is called here."""
        step = self.log_step.exp()
        exponent = torch.complex(-self.log_decay.exp() * step, self.turn * step)
        return (exponent * torch.arange(count, device=exponent.device)[:, None, None]).exp()

    def _enter(self) -> torch.Tensor:
        """Return B, for an input that is held during a frame (zero-order hold)."""
        return (self._powers(2)[1] - 1) / torch.complex(-self.log_decay.exp(), self.turn)

    def _out(self) -> torch.Tensor:
        return torch.view_as_complex(self.out)

    def _convolved(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the recurrence gives for these inputs from a state of zeros."""
        frames = inputs.shape[1]
        kernel = 2 * torch.einsum("tcn,cn->tc", self._powers(frames), self._out() * self._enter()).real
        spectra = torch.fft.rfft(inputs, 2 * frames, dim=1) * torch.fft.rfft(kernel, 2 * frames, dim=0)
        return torch.fft.irfft(spectra, 2 * frames, dim=1)[:, :frames]

    def _mixed(self, inputs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return functional.glu(self.mix(functional.gelu(values + inputs * self.through)), dim=-1)
