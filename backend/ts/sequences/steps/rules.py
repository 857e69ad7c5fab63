"""What becomes of a step that arrives: it runs, repeats one that was applied, or is refused. Pure; no store, no clock.

`judge` compares what a client claims of a step with the record of the sequence, however late the step comes. The rules,
which docs/sequence-contract.md states as guarantees:

* **A number** decides alone. The number after the last is the next step; a number up to the last is never applied
  again; any other is a gap. A number greater than 1 never begins a sequence.
* **A token** names the incarnation. A step for another incarnation is refused; one that begins a sequence under a token
  that is known, be its incarnation open or over, is a repetition and begins nothing. One that a server has made up
  begins nothing at all: its incarnation was lost, with a restart for example.
* **A request id**, where there is no number, belongs to an incarnation. An id that the incarnation has had is a
  repetition; a start marker begins another incarnation, unless id and body are those that this one began with.
"""

from typing import Final, NamedTuple

from ts.protocol.messages import ENDED
from ts.sequences.steps.record import SequenceRecord, is_made_by_server

#: Status and cause of a refusal. For the causes that it knows the server has words and a status of its own
#: (`endpoints/failures.py`); for others clients get this status.
Reason = tuple[int, str]
APPLIED: Final = (409, "step_applied")
GAP: Final = (409, "step_gap")
DIFFERS: Final = (409, "step_differs")
OPEN: Final = (409, "sequence_open")
RUNNING: Final = (409, "request_running")
UNKNOWN_SEQUENCE: Final = (410, "sequence_unknown")
OVER: Final = (410, "sequence_ended")
EXPIRED: Final = (410, "sequence_expired")


class Claim(NamedTuple):
    """What a client says of a step.

    Attributes:
        number: Its number; None if the client sends none.
        token: The token of the incarnation; None if the client sends none.
        request_id: The client's id of the request, else the server's; empty of `USUAL`, whose id says nothing.
        names_request: Whether the id is the client's.
        starts: Whether the request has the start marker.
        digest: The digest of the request, see `request_digest`; empty if it is not compared.
        asks: Whether the client only asks what has become of the step, which then begins nothing.
        is_new: Whether the id cannot have come before: it is the server's own, and was sent to no worker yet.
    """

    number: int | None
    token: str | None
    request_id: str
    names_request: bool
    starts: bool
    digest: bytes
    asks: bool = False
    is_new: bool = False


#: The claim of a new step of whose request the client says nothing but its sequence.
USUAL: Final = Claim(None, None, "", names_request=False, starts=False, digest=b"", is_new=True)


class RunStep(NamedTuple):
    """The step runs, as the first of an incarnation if it ``begins``."""

    begins: bool


class Repeat(NamedTuple):
    """The step was applied as the one with this number: it gets the same answer."""

    number: int


class Refuse(NamedTuple):
    """The step is not applied, or not once more."""

    reason: Reason


Verdict = RunStep | Repeat | Refuse
_RUN: Final = RunStep(False)
_BEGIN: Final = RunStep(True)


class Rules(NamedTuple):
    """What a model's configuration says of steps without a number."""

    require_start: bool = False  # whether only a start marker begins a sequence
    restart_expired: bool = False  # whether a step of an expired sequence begins another one


def judge(claim: Claim, record: SequenceRecord, running: int, rules: Rules) -> Verdict:
    """Return what becomes of a step.

    Args:
        running: How many steps of the incarnation run now, after its last applied one.
    """
    begun = record.last > 0 or running > 0
    is_open = begun and not record.closed
    if is_open and claim is USUAL:
        return _RUN
    number, token, _, _, starts, _, _, is_new = claim
    if is_open:  # the usual steps
        if number is None:
            if is_new and token is None and not starts:
                return _RUN
        elif number == record.last + running + 1 and token == record.token:
            return _RUN
    if token is not None and not (begun and token == (record.token or token)):
        return _of_another_incarnation(claim, record, is_open=is_open, rules=rules)
    if number is None:
        return _without_number(claim, record, begun, rules)
    return _numbered(claim, number, record, running)


def _of_another_incarnation(claim: Claim, record: SequenceRecord, *, is_open: bool, rules: Rules) -> Verdict:
    number, token = claim.number, claim.token or ""
    if record.is_earlier(token):
        if number == 1:
            return Refuse(APPLIED)
        return Refuse(OVER)
    if (number or 1) > 1 or (number is None and is_open and not claim.starts) or is_made_by_server(token):
        return Refuse(UNKNOWN_SEQUENCE)
    if is_open and not claim.starts:
        return Refuse(OPEN)
    if number is None and not claim.starts and (refusal := _refused_beginning(record, rules)) is not None:
        return refusal
    return _BEGIN


def _refused_beginning(record: SequenceRecord, rules: Rules) -> Refuse | None:
    """Why a step without number and start marker begins no sequence where none is open; None if it does."""
    if record.closed not in ("", ENDED) and not rules.restart_expired:
        return Refuse(EXPIRED)
    if rules.require_start:
        return Refuse(UNKNOWN_SEQUENCE)
    return None


def _numbered(claim: Claim, number: int, record: SequenceRecord, running: int) -> Verdict:
    """Judge a step with a number that names this incarnation, or none."""
    if record.last == 0 and not running:
        if number == 1:
            return _BEGIN
        return Refuse(UNKNOWN_SEQUENCE)
    if number <= record.last:
        if number == 1 and claim.token is None and (claim.starts or record.closed) and not claim.asks:
            return _repeat(1, claim, record) if _is_same_beginning(claim, record) else _BEGIN
        return _repeat(number, claim, record)
    if record.closed:
        return _over(record)
    if number <= record.last + running:
        return Refuse(RUNNING)
    return _RUN if number == record.last + running + 1 else Refuse(GAP)


def _without_number(claim: Claim, record: SequenceRecord, begun: bool, rules: Rules) -> Verdict:
    """Judge a step without a number; a token, if there is one, is that of the incarnation."""
    if not begun:
        return _BEGIN if claim.starts else _refused_beginning(record, rules) or _BEGIN
    kept = None if claim.is_new else record.kept_with(claim.request_id)
    if claim.starts:
        if claim.token is not None:
            return _repeat(1, claim, record)
        is_repeated = kept is not None and kept.number == 1 and _is_same_beginning(claim, record)
        return _repeat(1, claim, record) if is_repeated else _BEGIN
    if kept is not None:
        may_begin = not (claim.asks or claim.token) and (
            record.closed == ENDED or (bool(record.closed) and rules.restart_expired)
        )
        if kept.number == 1 and may_begin and not _is_same_beginning(claim, record):
            return _refused_beginning(record, rules) or _BEGIN
        return _repeat(kept.number, claim, record)
    if not claim.is_new and record.has_id(claim.request_id):
        return Refuse(APPLIED)
    if not record.closed:
        return _RUN
    if claim.token is not None:
        return _over(record)
    return _refused_beginning(record, rules) or _BEGIN


def _is_same_beginning(claim: Claim, record: SequenceRecord) -> bool:
    """Whether a step that may begin an incarnation is the one that has begun this one, rather than the next.

    A client that has sent further steps has had the answer to the first, so it would not send that once more after the
    end.
    """
    first = (record.kept or {}).get(1)
    if first is None or bool(first.digest) != bool(claim.digest) or not _is_same_request(first.digest, claim.digest):
        return False
    is_alone = record.last == 1
    if claim.names_request or claim.number is None:
        return first.request_id == claim.request_id and (is_alone or not record.closed)
    return is_alone


def _repeat(number: int, claim: Claim, record: SequenceRecord) -> Verdict:
    kept = (record.kept or {}).get(number)
    if kept is None:
        return Refuse(APPLIED)
    if not _is_same_request(kept.digest, claim.digest):
        return Refuse(DIFFERS)
    return Repeat(number)


def _is_same_request(one: bytes, other: bytes) -> bool:
    """Whether two digests are of the same request, as far as both say: one may have only the digest of the values."""
    size = min(len(one), len(other))
    return one[:size] == other[:size]


def _over(record: SequenceRecord) -> Refuse:
    if record.closed == ENDED:
        return Refuse(OVER)
    return Refuse(EXPIRED)
