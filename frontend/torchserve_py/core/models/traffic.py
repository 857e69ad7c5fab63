"""Which version runs a request that names none, once an operator has given the versions weights."""

import random
from bisect import bisect
from collections.abc import Mapping
from hashlib import blake2b
from itertools import accumulate

from torchserve_py.core.jobs.call import Call
from torchserve_py.core.serving.serving import StickyBy


class Traffic:
    """Chooses versions by their weights; those of one sequence get the same, on every server with these."""

    def __init__(self, name: str, weights: Mapping[str, int]) -> None:
        self._name = name
        self._versions = list(weights)
        self._ends = list(accumulate(weights.values()))

    def version_for(self, call: Call, sticky_by: StickyBy) -> str:
        """Return the version that the weights choose for a call."""
        sticky = sticky_by(call) if call.sequence is None else call.sequence.id
        place = random.random() if sticky is None else self._place_of(sticky)  # noqa: S311 - it is no secret
        return self._versions[bisect(self._ends, place * self._ends[-1])]

    def _place_of(self, text: str) -> float:
        """Return the same number below 1 for a text each time."""
        digest = blake2b(f"{self._name}\0{text}".encode("utf-8", "surrogatepass"), digest_size=6).digest()
        return int.from_bytes(digest) / (1 << 48)
