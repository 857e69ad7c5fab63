"""One step of a small recurrent network: a GRU cell and a linear head. The caller keeps the hidden state."""

from __future__ import annotations

import torch
from torch import nn


class SessionGRU(nn.Module):
    """Maps an input [rows, 4] and a hidden state [rows, 32] to an output [rows, 4] and the next hidden state."""

    input_size = 4
    hidden_size = 32

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(self.input_size, self.hidden_size)
        self.head = nn.Linear(self.hidden_size, self.input_size)

    def forward(self, inputs: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.cell(inputs, hidden)
        return self.head(hidden), hidden
