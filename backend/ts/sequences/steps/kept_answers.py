"""The answers that a store keeps, for steps that were applied before."""

import logging

import msgpack

from ts.protocol.messages import ResultRow
from ts.sequences.steps.record import Damaged, SequenceRecord
from ts.sequences.steps.rules import APPLIED, Refuse, Repeat, Rules, judge
from ts.sequences.steps.step import Step, answer_of, error_answer, unknown
from ts.sequences.steps.stores.store import Store, StoreError

logger = logging.getLogger(__name__)


def repeated(store: Store, step: Step, record: SequenceRecord, number: int) -> ResultRow:
    """Return the answer that the step with this number got, for a step that repeats it."""
    sequence_id, job_id = step.sequence_id, step.row.job_id
    try:
        kept = store.find(sequence_id, record.incarnation, number)
        if kept is None:
            return error_answer(job_id, *APPLIED)
        return answer_of(step, kept, record)
    except StoreError as error:
        logger.error("The sequence store cannot tell whether a step was applied: %s", error)
        return unknown(step)
    except (Damaged, ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
        logger.error("The kept answer to step %d of %r is damaged: %s", number, sequence_id, error)
        return error_answer(job_id, *APPLIED)


def look_up(store: Store, step: Step, rules: Rules, otherwise: ResultRow | None = None) -> ResultRow:
    """Return the kept answer to a step if it was applied, whoever holds its sequence.

    Args:
        otherwise: The answer if the store does not show that the step was applied; None means ``outcome_unknown``,
            since without the lease it cannot be told whether another worker applies it now.
    """
    try:
        record = store.peek(step.sequence_id)
    except (StoreError, Damaged) as error:
        logger.error("The sequence store cannot tell whether a step was applied: %s", error)
        return unknown(step)
    verdict = None if record is None else judge(step.claim, record, 0, rules)
    if record is not None and isinstance(verdict, Repeat):
        return repeated(store, step, record, verdict.number)
    if isinstance(verdict, Refuse) and verdict.reason is APPLIED:
        return error_answer(step.row.job_id, *verdict.reason)
    return otherwise or unknown(step)
