"""A stored sequence that goes back: it goes on after an earlier step. Pure; no store, no clock.

It goes on as another incarnation, which has the steps that stay. The token until then becomes that of an earlier
sequence with the id, which is over: so neither a late copy of an undone step nor a step of a client that has not heard
of the rewind is taken for the next one. Steps without a token can be sent again: the ids of undone ones are forgotten.
"""

from dataclasses import replace

from ts.sequences.steps.record import (
    DIGEST_SIZE,
    Checkpoint,
    SequenceRecord,
    new_token,
    pack_logged_head,
    unpack_head,
)
from ts.sequences.steps.sequence_limits import MOST_EARLIER_TOKENS
from ts.sequences.steps.stores.earlier_step import LEAST_TIME, after_step
from ts.sequences.steps.stores.maintenance import StoredSequence


def rewind(sequence: StoredSequence, step: int) -> StoredSequence:
    """Return an open sequence as it goes on after an earlier step.

    Raises NoStateThere: it is over, or the store does not have the state after that step.
    """
    earlier = after_step(sequence, unpack_head(sequence.head), step)
    record = _renewed(sequence, before=sequence)
    record.last, record.checkpoint = step, earlier.checkpoint
    return replace(
        sequence,
        head=pack_logged_head(record, record.checkpoint),
        tokens=record.tokens,
        time_left=max(sequence.time_left, LEAST_TIME),
        ids=earlier.ids,
        answers=earlier.answers,
        log=earlier.log,
    )


def replacement(sequence: StoredSequence, before: StoredSequence | None) -> StoredSequence:
    """Return a sequence that takes the place of one with its id: no step with a token of either enters it."""
    record = _renewed(sequence, before)
    return replace(sequence, head=pack_logged_head(record, record.checkpoint), tokens=record.tokens)


def _renewed(sequence: StoredSequence, before: StoredSequence | None) -> SequenceRecord:
    """Return the record of a sequence with a token that nobody knows yet."""
    head, tokens = unpack_head(sequence.head), sequence.tokens
    incarnation = head.incarnation
    if before is not None:
        incarnation = max(incarnation, unpack_head(before.head).incarnation)
        tokens = before.tokens + tokens
    earlier = list(dict.fromkeys(tokens[at : at + DIGEST_SIZE] for at in range(0, len(tokens), DIGEST_SIZE)))
    return SequenceRecord(
        *(incarnation + 1, new_token(), head.version, head.state_version, head.last, sequence.closed),
        forgotten_ids=head.forgotten_ids,
        earlier=b"".join(earlier[-MOST_EARLIER_TOKENS:]),
        checkpoint=Checkpoint(head.checkpoint, head.state_checksum, head.log_from),
    )
