"""Looks up in a store what a step was answered with that was applied before, and says so where that cannot be told."""

from __future__ import annotations

import logging

from ts.protocol.messages import ResultRow
from ts.sequence.answers import Step, kept_answer, kept_digest
from ts.sequence.refusals import NOT_TOLD, UNKNOWN, error_answer
from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)


def answer_again(store: Store, step: Step, lease: Lease) -> ResultRow:
    """Return the answer to a step that was applied under this lease's incarnation."""
    try:
        answer = store.answer(lease, step.request_id)
    except StoreError as error:
        logger.error("A kept answer cannot be read: %s", error)
        answer = None
    return unknown(step) if answer is None else kept_answer(step.row.job_id, answer)


def first_had_body(store: Store, lease: Lease, digest: bytes) -> bool:
    """Whether the step that began the incarnation had the body with this digest, as far as that is known.

    Raises:
        StoreError: It cannot be read.
    """
    answer = None if lease.first_id is None else store.answer(lease, lease.first_id)
    return answer is None or kept_digest(answer) in {digest, b""}


def look_up(store: Store, step: Step, incarnation: int | None = None, otherwise: ResultRow | None = None) -> ResultRow:
    """Return the answer to a step whose sequence another holds.

    Args:
        store: The store.
        step: The step.
        incarnation: In which incarnation it can have been applied; None: in the latest.
        otherwise: What it is told if it was not applied; None: that this cannot be told.
    """
    try:
        answer = store.find(step.sequence_id, step.request_id, incarnation)
    except StoreError as error:
        logger.error("It cannot be told whether a step was applied: %s", error)
        return unknown(step)
    return kept_answer(step.row.job_id, answer) if answer is not None else otherwise or unknown(step)


def unknown(step: Step) -> ResultRow:
    """Return what a step is told where nobody knows whether it was applied."""
    return error_answer(step.row.job_id, *UNKNOWN, NOT_TOLD)
