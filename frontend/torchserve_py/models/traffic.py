"""Which version runs a request whose path names none: the one that its header names, or the one that weights choose."""

import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

from torchserve_py.jobs.inference_request import USER_HEADER, VERSION_HEADER, InferenceRequest


class Traffic:
    """Chooses versions by their weights; those of one sequence or user get the same, on every server with these."""

    def __init__(self, name: str, weights: Mapping[str, int]) -> None:
        self._name = name
        self._versions = list(weights)
        self._ends = list(accumulate(weights.values()))

    def version_for(self, request: InferenceRequest) -> str:
        """Return the version that the weights choose for a request."""
        sticky = _header(request.headers, USER_HEADER) if request.sequence is None else request.sequence.id
        place = random.random() if sticky is None else self._place_of(sticky)  # noqa: S311 - it is no secret
        return self._versions[bisect(self._ends, place * self._ends[-1])]

    def _place_of(self, text: str) -> float:
        """Return the same number below 1 for a text each time."""
        digest = blake2b(f"{self._name}\0{text}".encode("utf-8", "surrogatepass"), digest_size=6).digest()
        return int.from_bytes(digest) / (1 << 48)


def named_version(request: InferenceRequest) -> str | None:
    """Return the version that a request names in `VERSION_HEADER`, None or an empty text if it names none."""
    return _header(request.headers, VERSION_HEADER)


def _header(headers: Sequence[tuple[Any, Any]], name: str) -> str | None:
    length = len(name)
    for pair in reversed(headers):  # later ones win
        if len(pair[0]) != length:  # first, since every request without a version comes here
            continue
        key, value = (each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in pair)
        if key.lower() == name:
            return value
    return None
