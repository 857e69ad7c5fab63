"""Whether the pieces of a sequence that comes from elsewhere fit together: a store takes it as it is. Pure."""

import math
import re
from typing import Final

from ts.sequences.steps.record import DIGEST_SIZE, Damaged, check_state, unpack_head
from ts.sequences.steps.sequence_limits import MOST_EARLIER_TOKENS, MOST_KEPT_ANSWERS
from ts.sequences.steps.state_log import since_latest_state
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.store import REASONS_OF_END

#: No number of a step or an incarnation is as large; stores have 64 bits for one.
_MOST: Final = 2**62
#: The longest time for which a sequence may be idle, or be remembered (seconds): a hundred years.
_LONGEST: Final = 3.2e9
#: What clients can send, as `torchserve_py.endpoints.sequences` takes it: the longest id, and the form of a token.
#: Sequences that began before there were tokens have none.
MOST_TEXT: Final = 1000
_TOKEN: Final = re.compile(r"[ -~]{0,200}")
_UNUSABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_MOST_SHOWN: Final = 50


def check_sound(sequence: StoredSequence) -> None:
    """Raise Damaged if the pieces of a sequence contradict each other, or no store could have had them."""
    head = unpack_head(sequence.head)
    if not (0 < head.incarnation < _MOST and 0 < head.last < _MOST):
        raise Damaged(f"step {head.last} of sequence {head.incarnation} with its id cannot be")
    texts = (("model", sequence.model), ("id", sequence.sequence_id), ("version", head.version))
    for what, text in (
        *(*texts, ("version of its state", head.state_version)),
        *(("request id", each.step.request_id) for each in sequence.answers),
    ):
        if len(text) > MOST_TEXT or _UNUSABLE.search(text):
            raise Damaged(f"its {what} cannot be {_shown(text)}")
    if not _TOKEN.fullmatch(head.token):
        raise Damaged(f"its token cannot be {_shown(head.token)}")
    if sequence.closed not in REASONS_OF_END:
        raise Damaged(f"{_shown(sequence.closed)} is no reason for its end")
    if not (math.isfinite(sequence.time_left) and abs(sequence.time_left) <= _LONGEST):
        raise Damaged(f"{sequence.time_left} seconds cannot be left of its time")
    ids, tokens = sequence.ids, sequence.tokens
    if len(ids) % DIGEST_SIZE or len(ids) > head.last * DIGEST_SIZE:
        raise Damaged(f"{len(ids)} bytes cannot be its request ids")
    if len(tokens) % DIGEST_SIZE or len(tokens) > (MOST_EARLIER_TOKENS + 1) * DIGEST_SIZE:
        raise Damaged(f"{len(tokens)} bytes cannot be the tokens of the sequences with its id")
    numbers = [each.step.number for each in sequence.answers]
    if len(numbers) > MOST_KEPT_ANSWERS + 1 or len({*numbers}) < len(numbers):
        raise Damaged(f"{len(numbers)} answers cannot be kept, each of another step")
    if any(not 0 < number <= head.last for number in numbers):
        raise Damaged("an answer is kept of a step that it has not had")
    if any(len(each.step.digest) not in {0, DIGEST_SIZE, 2 * DIGEST_SIZE} for each in sequence.answers):
        raise Damaged("the digest of a request has the wrong size")
    if sequence.closed:
        if sequence.state is not None or sequence.log:
            raise Damaged("it is over, and has a state")
        return
    check_state(head, sequence.state)
    count = head.last - head.log_from + 1 if head.log_from else 0
    numbers = [each.number for each in sequence.log]
    if len(numbers) != count or numbers != [*range(head.log_from, head.log_from + count)]:
        raise Damaged("entries of its log are missing, or too many")
    if not all(each.is_sound for each in sequence.log):
        raise Damaged("an entry of its log is no state, though it begins as one")
    if any(each.is_gap for each in since_latest_state(None, sequence.log).log):
        raise Damaged("its log has earlier states, but not the present one")
    if head.log_from and not head.checkpoint < head.log_from:
        raise Damaged("its log begins before its state")


def _shown(text: str) -> str:
    """Return a text for a message, which is not longer because the text is."""
    return repr(text) if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]!r}… ({len(text)} characters)"
