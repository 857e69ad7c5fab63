"""Which version runs a request that names none, once an operator has given the versions weights."""

import random
from bisect import bisect
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final

from torchserve_py.jobs.inference_request import InferenceRequest

#: The header by which a request names its version all the same, for testers.
VERSION_HEADER: Final = "x-model-version"
#: The header whose value decides for requests without a sequence, so that a user gets the same version each time.
USER_HEADER: Final = "x-user-id"


class Traffic:
    """Chooses versions by their weights; those of one sequence or user get the same, on every server with these."""

    def __init__(self, name: str, weights: Mapping[str, int]) -> None:
        self._name = name
        self._versions = list(weights)
        self._ends = list(accumulate(weights.values()))

    def version_for(self, request: InferenceRequest) -> str:
        """Return the version that a request names in `VERSION_HEADER`, or the one that its weight chooses."""
        if named := _header(request.headers, VERSION_HEADER):
            return named
        sticky = _header(request.headers, USER_HEADER) if request.sequence is None else request.sequence.id
        place = random.random() if sticky is None else self._place_of(sticky)  # noqa: S311 - it is no secret
        return self._versions[bisect(self._ends, place * self._ends[-1])]

    def _place_of(self, text: str) -> float:
        """Return the same number below 1 for a text each time."""
        digest = blake2b(f"{self._name}\0{text}".encode("utf-8", "surrogatepass"), digest_size=6).digest()
        return int.from_bytes(digest) / (1 << 48)


def _header(headers: Sequence[tuple[Any, Any]], name: str) -> str | None:
    for pair in reversed(headers):  # later ones win
        key, value = (each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in pair)
        if key.lower() == name:
            return value
    return None
