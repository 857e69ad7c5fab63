"""Looks up the kept answers of repeated steps in a store; answers ``outcome_unknown`` if the store cannot tell."""

from __future__ import annotations

import logging

from ts.protocol.messages import ResultRow
from ts.sequence.answers import Step, kept_answer, kept_digest
from ts.sequence.refusals import NOT_TOLD, UNKNOWN, error_answer
from ts.sequence.stores.store import Lease, Store, StoreError

logger = logging.getLogger(__name__)


def answer_again(store: Store, step: Step, lease: Lease) -> ResultRow:
    """Return the kept answer to a step that was applied in the lease's incarnation."""
    try:
        answer = store.answer(lease, step.request_id)
    except StoreError as error:
        logger.error("A kept answer cannot be read: %s", error)
        answer = None
    return unknown(step) if answer is None else kept_answer(step.row.job_id, answer)


def first_had_body(store: Store, lease: Lease, digest: bytes) -> bool:
    """Return whether the first step of the incarnation had the body with this digest; true if its digest is unknown.

    Raises:
        StoreError: The store cannot be read.
    """
    answer = None if lease.first_id is None else store.answer(lease, lease.first_id)
    return answer is None or kept_digest(answer) in {digest, b""}


def look_up(store: Store, step: Step, incarnation: int | None = None, otherwise: ResultRow | None = None) -> ResultRow:
    """Return the kept answer to a step whose sequence another worker may hold.

    Args:
        incarnation: The incarnation in which the step may have been applied; None means the latest.
        otherwise: The answer if the store has none for the step; None means ``outcome_unknown``.
    """
    try:
        answer = store.find(step.sequence_id, step.request_id, incarnation)
    except StoreError as error:
        logger.error("The sequence store cannot tell whether a step was applied: %s", error)
        return unknown(step)
    return kept_answer(step.row.job_id, answer) if answer is not None else otherwise or unknown(step)


def unknown(step: Step) -> ResultRow:
    """Return the error answer ``outcome_unknown``: neither the worker nor the store knows whether the step applied."""
    return error_answer(step.row.job_id, *UNKNOWN, NOT_TOLD)
