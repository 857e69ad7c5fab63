"""Which token comes next: the likeliest one, or one drawn by temperature, top-k, top-p and min-p.

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
        min_p: Only tokens with at least this share of the likeliest token's probability count.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


class Penalties(NamedTuple):
    """How the logits of single tokens are changed before one is drawn.

    Attributes:
        frequency: Taken from the logit of a token for each time that the answer has it.
        presence: Taken from the logits of the tokens that the answer has.
        repetition: Divides the logits above 0 of the tokens that prompt and answer have, and multiplies those below 0.
        bias: What is added to the logits of tokens.
    """

    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()


class Penalizing:
    """Penalties at work on one answer.

    Args:
        penalties: Which.
        prompt: The tokens before the answer.
    """

    def __init__(self, penalties: Penalties, prompt: Sequence[int]) -> None:
        self._penalties = penalties
        self._prompt = prompt
        #: The tokens of the answer that are not counted yet.
        self._new: list[int] = []
        self._counts: torch.Tensor | None = None

    def add(self, token: int) -> None:
        """Take note of a token of the answer."""
        self._new.append(token)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [vocabulary] of the next token as the penalties change them."""
        penalties = self._penalties
        if self._counts is None:
            self._counts = torch.zeros_like(logits)
            self._is_known = torch.zeros_like(logits, dtype=torch.bool)
            self._is_known[self._tensor(self._prompt)] = True
            self._bias = torch.zeros_like(logits)
            for token, value in penalties.bias:
                self._bias[token] = value
        if self._new:
            tokens = self._tensor(self._new)
            self._counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=logits.dtype))
            self._is_known[tokens] = True
            self._new.clear()
        if penalties.repetition != 1:
            repeated = torch.where(logits > 0, logits / penalties.repetition, logits * penalties.repetition)
            logits = torch.where(self._is_known, repeated, logits)
        taken = penalties.frequency * self._counts + penalties.presence * (self._counts > 0)
        return logits - taken + self._bias

    def _tensor(self, tokens: Sequence[int]) -> torch.Tensor:
        assert self._counts is not None, "the first logits have come"
        return torch.tensor(tokens, dtype=torch.int64, device=self._counts.device)


class TokenLogprobs(NamedTuple):
    """How likely a token was.

    Attributes:
        token: The token that was chosen.
        logprob: The natural logarithm of its probability, before temperature, penalties and constraints.
        top: The likeliest tokens and theirs.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def logprobs_of(logits: torch.Tensor, token: int, most: int) -> TokenLogprobs:
    """Return how likely a token was by the model's logits [vocabulary], and the ``most`` likeliest ones."""
    logprobs = logits.float().log_softmax(-1)
    values, tokens = logprobs.topk(min(most, logits.shape[0]))
    return TokenLogprobs(token, logprobs[token].item(), list(zip(tokens.tolist(), values.tolist(), strict=True)))


def new_seed() -> int:
    """Return a seed that nobody can foresee, 0 to 2**63 - 1."""
    return secrets.randbits(63)


def uniform(seed: int, count: int) -> float:
    """Return the ``count``-th random number of a seed, in [0, 1)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=count)).random())


def choose(logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """Return a token for each row of the logits [rows, vocabulary]; ``uniforms`` are in [0, 1).

    Temperature, top-k, top-p and min-p come in this order, as in transformers' `generate`.
    """
    drawn = [row for row, sampling in enumerate(samplings) if sampling.temperature > 0]
    chosen: list[int] = logits.argmax(-1).tolist()
    if drawn:
        # Seldom-used precision, for little: what is drawn must not depend on how a sum is rounded.
        rows = logits[drawn].double()
        temperature, top_k, top_p, min_p = (
            torch.tensor(values, dtype=torch.float64, device=rows.device)[:, None]
            for values in zip(*(samplings[row] for row in drawn), strict=True)
        )
        scores, tokens = (rows / temperature).sort(descending=True, stable=True)
        rank = torch.arange(scores.shape[1], device=rows.device)
        scores = scores.masked_fill((top_k > 0) & (rank >= top_k), -torch.inf)
        probabilities = scores.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.masked_fill((before >= top_p) & (rank > 0), 0.0)
        probabilities = probabilities.masked_fill(probabilities < min_p * probabilities[:, :1], 0.0)
        sums = probabilities.cumsum(-1)
        point = torch.tensor([uniforms[row] for row in drawn], dtype=torch.float64, device=rows.device)[:, None]
        place = (sums <= point * sums[:, -1:]).sum(-1, keepdim=True).clamp_(max=scores.shape[1] - 1)
        for row, token in zip(drawn, tokens.gather(1, place)[:, 0].tolist(), strict=True):
            chosen[row] = token
    return chosen
