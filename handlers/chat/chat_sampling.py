"""Which token comes next: the likeliest one, or one drawn by temperature, top-k and top-p.

What is drawn depends on the model's logits, a seed, and how many tokens the conversation has drawn with that seed
before. So a conversation draws the same tokens whoever else is in the batch, and continues its random numbers on
another worker: seed and count are all that has to be kept.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class Sampling(NamedTuple):
    """How a token is drawn.

    Attributes:
        temperature: The logits are divided by it; 0 takes the likeliest token.
        top_k: Only that many likeliest tokens count; 0 for all.
        top_p: Only the likeliest tokens with this probability in sum count.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def new_seed() -> int:
    """Return a seed that nobody can foresee, 0 to 2**63 - 1."""
    return secrets.randbits(63)


def uniform(seed: int, count: int) -> float:
    """Return the ``count``-th random number of a seed, in [0, 1)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=count)).random())


def choose(logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """Return a token for each row of the logits [rows, vocabulary]; ``uniforms`` are in [0, 1).

    Temperature, top-k and top-p come in this order, as in transformers' `generate`.
    """
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    chosen: list[int] = logits.argmax(-1).tolist()
    if drawn:
        # Seldom-used precision, for little: what is drawn must not depend on how a sum is rounded.
        rows = logits[drawn].double()
        temperature, top_k, top_p = (
            torch.tensor(values, dtype=torch.float64, device=rows.device)[:, None]
            for values in zip(*(samplings[row] for row in drawn), strict=True)
        )
        scores, tokens = (rows / temperature).sort(descending=True, stable=True)
        rank = torch.arange(scores.shape[1], device=rows.device)
        scores = scores.masked_fill((top_k > 0) & (rank >= top_k), -torch.inf)
        probabilities = scores.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill((before >= top_p) & (rank > 0), 0.0)
        sums = probabilities.cumsum(-1)
        point = torch.tensor([uniforms[row] for row in drawn], dtype=torch.float64, device=rows.device)[:, None]
        place = (sums <= point * sums[:, -1:]).sum(-1, keepdim=True).clamp_(max=scores.shape[1] - 1)
        for row, token in zip(drawn, tokens.gather(1, place)[:, 0].tolist(), strict=True):
            chosen[row] = token
    return chosen
