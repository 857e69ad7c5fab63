"""The commit of the steps that a batch's answers complete, and what it makes of these answers.

`stored_steps` prepares it. `BatchCommit.write` uses nothing but the store and this object, so that another thread can
call it while the handler runs steps of other sequences. `BatchCommit.apply`, which the handler's thread calls
afterwards, changes leases and states in memory accordingly.
"""

import logging
import time
from collections.abc import Sequence

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import ResultRow
from ts.sequences.steps.holdings import Holdings
from ts.sequences.steps.kept_answers import look_up
from ts.sequences.steps.rules import Rules
from ts.sequences.steps.step import MOVED, NOT_STORED, NOT_TOLD, UNKNOWN, UNREADABLE, Step, error_answer
from ts.sequences.steps.stores.store import Commit, Lease, Store, StoreError, TooLarge

logger = logging.getLogger(__name__)


class BatchCommit:
    """The changes of one batch.

    Args:
        answers: The answers of the batch; those to steps that do not count are replaced by errors.
        lease_seconds: For how long a commit prolongs the leases.
        rules: What the model's configuration says of steps without a number.

    Attributes:
        steps: The steps to be committed by sequence id; `write` does not change them.
        commits: Their changes, one of each sequence.
        behind: Those of which the store has lost earlier steps: `of_behind` returns their answers.
        seconds: How long `write` took.
    """

    def __init__(self, answers: list[ResultRow], lease_seconds: float, rules: Rules) -> None:
        self.answers = answers
        self._rules = rules
        self.steps: dict[str, list[Step]] = {}
        self.commits: list[Commit] = []
        self.behind: list[Commit] = []
        self.seconds = 0.0
        self._lease_seconds = lease_seconds
        self._fresh_until = 0.0
        self._prolonged: list[Lease] = []
        self._dropped: list[str] = []
        self._failed: list[str] = []

    def refuse(self, sequence_id: str, status: int, cause: str, message: str = "") -> None:
        """Answer a sequence's steps with an error."""
        for step in self.steps.get(sequence_id, ()):
            self.answers[step.index] = error_answer(step.row.job_id, status, cause, message)

    def write(self, store: Store) -> None:
        """Write the changes to the store; replace the answers to steps that were not written by errors."""
        if not self.commits:
            return
        began = time.monotonic()
        self._fresh_until = boot_time() + self._lease_seconds
        try:
            written = store.commit(self.commits)
        except StoreError as error:
            logger.error("Steps cannot be committed: %s", error)
            self._settle(store, error)
        else:
            for commit, was_written in zip(self.commits, written, strict=True):
                if commit.lease.is_behind:
                    self.behind.append(commit)
                elif not was_written:
                    self._taken_over(store, commit.lease, certainly=was_written is False)
                elif commit.closed:
                    self._dropped.append(commit.lease.sequence_id)
                else:
                    self._prolonged.append(commit.lease)
        self.seconds = time.monotonic() - began

    def of_behind(self) -> "BatchCommit":
        """Return a batch of the steps whose sequences have to be written whole, and leave their answers to it."""
        again = BatchCommit([], self._lease_seconds, self._rules)
        for sequence_id in [commit.lease.sequence_id for commit in self.behind]:
            again.steps[sequence_id] = self.steps[sequence_id]
        moved = {step.index for steps in again.steps.values() for step in steps}
        for steps in again.steps.values():
            for step in steps:
                again.answers.append(self.answers[step.index])
                step.index = len(again.answers) - 1
        self.answers = [answer for index, answer in enumerate(self.answers) if index not in moved]
        return again

    def give_up_behind(self) -> None:
        """Answer steps of which the store has lost earlier ones once more."""
        for commit in self.behind:
            self.refuse(commit.lease.sequence_id, *UNKNOWN, NOT_TOLD)
            self._failed.append(commit.lease.sequence_id)

    def _settle(self, store: Store, error: StoreError) -> None:
        """Answer each step of a commit that has failed but may still have been written."""
        settled: Sequence[bool | None] = [None] * len(self.commits)
        try:
            settled = store.settle(self.commits)
        except StoreError as doubt:
            logger.error("The sequence store cannot tell whether steps were committed: %s", doubt)
        for commit, was_written in zip(self.commits, settled, strict=True):
            sequence_id = commit.lease.sequence_id
            if was_written is None:
                self.refuse(sequence_id, *UNKNOWN, f"{NOT_TOLD} {error}")
            elif not was_written:
                is_own = isinstance(error, TooLarge) and error.sequence_id == sequence_id
                reason = UNREADABLE if is_own else NOT_STORED
                self.refuse(sequence_id, *reason, f"The step was not stored, so it does not count: {error}")
            self._failed.append(sequence_id)

    def _taken_over(self, store: Store, lease: Lease, *, certainly: bool) -> None:
        """Answer steps whose lease another holder has taken; ``certainly``: their commit was certainly not written."""
        for step in self.steps[lease.sequence_id]:
            otherwise = error_answer(step.row.job_id, *MOVED) if certainly else None
            self.answers[step.index] = look_up(store, step, self._rules, otherwise)
        self._dropped.append(lease.sequence_id)

    def apply(self, holdings: Holdings) -> None:
        """Prolong the leases in memory; drop what has ended, was taken over or goes back."""
        for lease in self._prolonged:
            holdings.committed(lease, self._fresh_until)
        for sequence_id in self._dropped:
            holdings.drop_from_memory(sequence_id)
        for sequence_id in self._failed:
            holdings.roll_back(sequence_id)
