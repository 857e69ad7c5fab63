"""A fork of a stored sequence: a copy under another id, from which both go on by themselves. Pure; no store, no clock.

The fork has the steps of the original up to the one that it is made after: a step among them that is sent to the fork
again is a repetition there, as it is in the original. Its token is its own, so that no step enters both.
"""

from dataclasses import replace

from ts.sequences.steps.record import SequenceRecord, new_token, pack_logged_head, unpack_head
from ts.sequences.steps.stores.earlier_step import LEAST_TIME, after_step
from ts.sequences.steps.stores.maintenance import StoredSequence


def fork(sequence: StoredSequence, sequence_id: str, step: int | None = None) -> StoredSequence:
    """Return a copy of an open sequence under another id.

    Raises:
        NoStateThere: It is over, or the store does not have the state after that step.

    Args:
        step: The number of the step after which the fork goes on; None for the last one.
    """
    head = unpack_head(sequence.head)
    last = head.last if step is None else step
    earlier = after_step(sequence, head, last)
    record = SequenceRecord(*(1, new_token(), head.version, head.state_version, last), forgotten_ids=head.forgotten_ids)
    return replace(
        sequence,
        sequence_id=sequence_id,
        head=pack_logged_head(record, earlier.checkpoint),
        time_left=max(sequence.time_left, LEAST_TIME),
        tokens=record.tokens,
        ids=earlier.ids,
        answers=earlier.answers,
        log=earlier.log,
    )
