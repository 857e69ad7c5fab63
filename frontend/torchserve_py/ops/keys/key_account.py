"""What a key may ask of a server, what it has running, and what it has used."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from torchserve_py.base.causes import Cause
from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.job_observer import ObservedJob
from torchserve_py.core.jobs.parts import Exceeded, Part
from torchserve_py.ops.keys.keys_file import LimitsEntry
from torchserve_py.ops.keys.token_bucket import TokenBucket

#: How many bytes at the end of an answer are searched for its usage.
_LOOKED_INTO: Final = 4096
_USAGE: Final = b'"usage"'


@dataclass(slots=True)
class KeyUsage:
    """What a key has used of a model; requests that were refused for its limits count as refused and for nothing else.

    Attributes:
        requests: How many have ended.
        failed: How many of them without an answer, or with an error.
        refused: How many were refused for the limits of the key.
        tokens: Those of answers, see `tokens_in`.
        seconds: How long its requests were with workers, together.
    """

    requests: int = 0
    failed: int = 0
    refused: int = 0
    tokens: int = 0
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Counted:
    """A request that runs, for how many it counts, and the tokens of its answer so far: one for each part."""

    usage: KeyUsage
    places: int
    tokens: int = 0


class KeyAccount:
    """The account of one key, a `jobs.job_observer.Account`. Tests set the clock ``now`` (seconds).

    Args:
        client: What tells the key from all others.
        name: What people call it.
    """

    def __init__(self, client: str = "", name: str = "", now: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.name = name
        self.weight = 1.0
        #: By model.
        self.usage: dict[str, KeyUsage] = {}
        self._now = now
        self._limits = LimitsEntry()
        self._requests: TokenBucket | None = None
        self._tokens: TokenBucket | None = None
        self._running = 0
        #: The sequences that it may have open, with what tells whether they are, by model and id.
        self._sequences: dict[tuple[str, str], Callable[[str], bool]] = {}

    def change(self, limits: LimitsEntry, weight: float = 1.0) -> None:
        """Set the limits and the weight; what runs counts against the new ones."""
        self.weight = weight
        if limits.requests_per_second != self._limits.requests_per_second:
            self._requests = self._bucket(limits.requests_per_second)
        if limits.tokens_per_second != self._limits.tokens_per_second:
            self._tokens = self._bucket(limits.tokens_per_second)
        self._limits = limits

    def _bucket(self, rate: float | None) -> TokenBucket | None:
        return None if rate is None else TokenBucket(rate, self._now)

    def begin(self, call: Call, model: str, is_open: Callable[[str], bool]) -> Exceeded | ObservedJob:
        """See `jobs.job_observer.Account.begin`."""
        if (usage := self.usage.get(model)) is None:
            usage = self.usage[model] = KeyUsage()
        sequence_id = None if call.sequence is None else call.sequence.id
        places = 0 if call.depth else 1  # a call within a request that runs only costs, unless it opens a sequence
        exceeded = self._exceeded() if places else None
        if exceeded is None and sequence_id is not None:
            exceeded = self._too_many_sequences(model, sequence_id)
        if exceeded is not None:
            usage.refused += 1
            return exceeded
        if self._requests is not None:
            self._requests.take(1)
        if self._limits.open_sequences is not None and sequence_id is not None:
            self._sequences[model, sequence_id] = is_open
        self._running += places
        counted = _Counted(usage, places)
        return ObservedJob(call.headers, None, partial(self._end, counted), partial(self._part, counted))

    def _exceeded(self) -> Exceeded | None:
        limits = self._limits
        if limits.requests_at_once is not None and self._running >= limits.requests_at_once:
            message = f"This key may have at most {limits.requests_at_once} requests at once."
            return Exceeded(Cause.too_many_at_once, message, 1)
        if (requests := self._requests) is not None and requests.left < 1:
            message = f"This key may make at most {requests.rate:g} requests a second."
            return Exceeded(Cause.rate_limited, message, requests.full_seconds_until_one())
        if (tokens := self._tokens) is not None and tokens.left < 1:
            message = f"This key may have at most {tokens.rate:g} tokens a second."
            return Exceeded(Cause.too_many_tokens, message, tokens.full_seconds_until_one())
        return None

    def _too_many_sequences(self, model: str, sequence_id: str) -> Exceeded | None:
        most = self._limits.open_sequences
        if most is None or (model, sequence_id) in self._sequences:
            return None
        if len(self._sequences) >= most:
            self._sequences = {key: is_open for key, is_open in self._sequences.items() if is_open(key[1])}
        if len(self._sequences) >= most:
            message = f"This key may have at most {most} sequences open. End one first, or wait until one has expired."
            return Exceeded(Cause.too_many_sequences, message, 1)
        return None

    def _part(self, counted: _Counted, part: Part) -> None:
        self._charge(counted, 1)

    def _end(self, counted: _Counted, ended: EndedJob, last: Part | None) -> None:
        self._running -= counted.places
        usage = counted.usage
        usage.requests += 1
        usage.failed += not ended.succeeded
        if ended.sent_at:
            usage.seconds += ended.ended_at - ended.sent_at
        if last is not None and last.error is None:
            told = tokens_in(last.body)
            self._charge(counted, 1 if told is None else told - counted.tokens)
        usage.tokens += counted.tokens  # only now: an answer may say that it has fewer than parts

    def _charge(self, counted: _Counted, tokens: int) -> None:
        counted.tokens += tokens
        if self._tokens is not None:
            self._tokens.take(tokens)


def tokens_in(body: bytes | bytearray) -> int | None:
    """Return how many tokens an answer says that it has used, in a member ``usage`` as OpenAI's have; None if not.

    Only the end of the answer is looked into.
    """
    end = bytes(body[-_LOOKED_INTO:])
    if (at := end.rfind(_USAGE)) < 0:
        return None
    text = end[at + len(_USAGE) :].decode("utf-8", "replace").lstrip(" :")
    try:
        usage = json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
    counts = usage if isinstance(usage, dict) else {}
    total = counts.get("total_tokens")
    return total if type(total) is int and total >= 0 else None
