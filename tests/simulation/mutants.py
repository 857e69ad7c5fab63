"""Defects, planted one at a time: the checker has to find each."""

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

from torchserve_py.core.dispatch.dispatcher import Dispatcher
from torchserve_py.core.handover import left_sequences, server_lists
from torchserve_py.core.handover.left_files import LeftFiles
from torchserve_py.core.handover.server_lists import ServerLists
from torchserve_py.core.handover.storage import Place
from torchserve_py.core.scheduling import sequence as sequences
from torchserve_py.core.scheduling.closed import ClosedIds
from torchserve_py.core.scheduling.scheduler import Scheduler
from torchserve_py.core.scheduling.sequence_source import Sequences
from ts.protocol.frames import Buffer
from ts.protocol.messages import ResultRow
from ts.sequence.sequence_cache import SequenceCache
from ts.sequences.handover import give_and_take
from ts.sequences.handover.give_and_take import Handover
from ts.sequences.handover.sent_ahead import Change, Copy
from ts.sequences.redis import redis_store
from ts.sequences.sqlite import file_acquisition, file_journal, file_tables
from ts.sequences.sqlite import file_store as file
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps import rules, steps
from ts.sequences.steps.migration import Migration
from ts.sequences.steps.rebuilding import Rebuilding, StoredLog
from ts.sequences.steps.record import Damaged, RecordHead, SequenceRecord
from ts.sequences.steps.rules import Claim, Verdict
from ts.sequences.steps.state_log import LogEntry, unpack_entry
from ts.sequences.steps.stored_steps import StoredSteps
from ts.sequences.steps.stores.store import Lease, StoreError
from ts.sequences.steps.written_states import WrittenStates

Planted = AbstractContextManager[Any]


def answer_before_commit() -> Planted:
    """Answers leave before their steps are committed."""

    def eager(
        self: StoredSteps, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], *_: Any, meanwhile: bool
    ) -> None:
        self.wait_for_commit()
        batch = self._prepare(answers)
        send([*batch.answers])
        self._write_and_apply(batch)

    return mock.patch.object(StoredSteps, "complete_and_send", eager)


def no_number_check() -> Planted:
    """A number that was applied before is taken for the next one."""
    numbered = rules._numbered

    def trusting(claim: Claim, number: int, record: SequenceRecord, running: int) -> Verdict:
        number = max(number, record.last + running + 1) if record.last and not record.closed else number
        return numbered(claim, number, record, running)

    return mock.patch.object(rules, "_numbered", trusting)


def no_digest() -> Planted:
    """Requests are not compared."""
    return mock.patch.object(steps, "digest_of_request", lambda *_, **__: b"")


def window_of_ids() -> Planted:
    """Only the ids of the steps whose answers are kept are known."""
    return mock.patch.object(SequenceRecord, "has_id", lambda self, request_id: False)


def ghost_after_the_end() -> Planted:
    """Tokens of earlier incarnations are forgotten."""
    return mock.patch.object(SequenceRecord, "is_earlier", lambda self, token: False)


def no_fence() -> Planted:
    """Whoever had a lease may write, even if another holder has taken it since."""
    stack = contextlib.ExitStack()
    for module, name, check, instead in (
        (file, "COUNT_TAKEOVER", "count + 1", "count"),
        (file_journal, "_UPDATE", "fence = ?", "? IS NOT NULL"),
        (file_journal, "_UPDATE_LOGGED", "fence = ?", "? IS NOT NULL"),
        (redis_store, "COMMIT", "found.err or found[1] ~= fence", "found.err"),
    ):
        statement = getattr(module, name)
        assert check in statement, f"{name} of {module.__name__} checks the fence otherwise"
        stack.enter_context(mock.patch.object(module, name, statement.replace(check, instead)))
    stack.enter_context(mock.patch.object(FileStore, "_is_valid", lambda self, lease: True))
    return stack


def wall_clock_for_leases() -> Planted:
    """Leases end at a moment of a clock that can be set."""
    stack = contextlib.ExitStack()
    for module in (file, file_acquisition):
        # A world has its own `time.time` later.
        stack.enter_context(mock.patch.object(module, "boot_time", lambda: time.time()))  # noqa: PLW0108
    return stack


def journal_as_a_whole() -> Planted:
    """A damaged entry of the journal is an error of all who read it."""
    read_change = file_journal.read_change

    def read(entry: Any) -> Any:
        try:
            return read_change(entry)
        except Damaged as damage:
            raise StoreError("the journal cannot be read") from damage

    return mock.patch.object(file_journal, "read_change", read)


def _planted_in_logs(defect: Callable[[StoredLog], StoredLog]) -> Planted:
    rebuilt = Rebuilding._rebuilt

    def with_defect(self: Rebuilding, logs: Sequence[StoredLog]) -> list[Any]:
        return rebuilt(self, [defect(each) for each in logs])

    return mock.patch.object(Rebuilding, "_rebuilt", with_defect)


def lost_entry() -> Planted:
    """The last entry of a log is not read."""
    return _planted_in_logs(lambda log: log._replace(entries=log.entries[:-1]))


def entry_applied_twice() -> Planted:
    """An entry counts twice when a state is made of its log."""
    return _planted_in_logs(lambda log: log._replace(entries=log.entries[:1] + log.entries))


def checkpoint_ahead_of_the_log() -> Planted:
    """A checkpoint has what the first entry behind it says."""
    return _planted_in_logs(lambda log: log if log.state is None else log._replace(state=log.state + log.entries[:1]))


def earlier_state() -> Planted:
    """Of the states in a log the one before the latest is taken for the present one."""
    read = file_tables.read_latest

    def stale(head: RecordHead, backwards: Iterable[Any], owner: int = 0) -> list[LogEntry]:
        pieces = list(backwards)
        log = read(head, pieces, owner)
        earlier = log[0].earlier if log else ()
        found = [unpack_entry(each, head.incarnation, owner) for each in pieces]
        return [each for each in found if earlier and each.number == earlier[-1]] or log

    return mock.patch.object(file_tables, "read_latest", stale)


def migrated_state_of_the_old_version() -> Planted:
    """The commit of a migrated state does not say that it is one of the new version."""
    move = Migration.move

    def planted(self: Migration, lease: Lease, *given: Any) -> None:
        version = lease.record.version
        move(self, lease, *given)
        lease.record.version = version

    return mock.patch.object(Migration, "move", planted)


def log_of_two_versions() -> Planted:
    """What a step appends after a migration is added to the log of the old version."""
    is_whole = WrittenStates._is_whole

    def planted(self: WrittenStates, lease: Lease, steps: int) -> bool:
        lease.migrated_from, version = "", lease.migrated_from
        whole = is_whole(self, lease, steps)
        lease.migrated_from = version
        return whole

    return mock.patch.object(WrittenStates, "_is_whole", planted)


def half_a_step_in_memory() -> Planted:
    """What a step that has failed has changed in memory stays."""
    return mock.patch.object(SequenceCache, "undo", lambda self, sequence_id: False)


def a_failed_end_ends() -> Planted:
    """A step with the end marker ends its sequence although it has failed."""

    def failed(self: Scheduler, job_id: str) -> None:
        self.jobs[job_id].failed = True

    return mock.patch.object(Scheduler, "failed", failed)


def state_before_its_step() -> Planted:
    """What a worker gives of a sequence is its state before the latest step."""
    give = Handover.give

    def planted(self: Handover, sequence_id: str, move: int, ahead: int | None) -> list[Any]:
        state = self._cache.get(sequence_id, [])
        *before, latest = state or [None]
        if len(before) < 2:  # its version, and no step
            return give(self, sequence_id, move, ahead)
        state[:] = before
        answer = give(self, sequence_id, move, ahead)
        state.append(latest)
        return answer

    return mock.patch.object(Handover, "give", planted)


def state_as_it_was_sent_ahead() -> Planted:
    """A worker takes a state as it was sent ahead, without what has changed since."""

    def unchanged(before: Copy, parts: Sequence[Buffer]) -> Change:
        makeup, first = [], 0
        for pieces in before:
            makeup.append(list(range(first, first + len(pieces))))
            first += len(pieces)
        return Change(makeup, [])

    return mock.patch.object(give_and_take, "changed_since", unchanged)


def taken_before_all_has_come() -> Planted:
    """A worker takes a sequence of which only what is known of its steps has come."""
    put = Handover._put

    def planted(self: Handover, sequence_id: str, *come: Any) -> None:
        put(self, sequence_id, *come)
        self._cache.drop(sequence_id)

    return mock.patch.object(Handover, "_put", planted)


def giver_goes_on() -> Planted:
    """A worker gets steps of a sequence that it has given."""
    arrive = Sequences.arrive

    def leaves(self: Sequences, sequence: sequences.Sequence) -> bool:
        return sequence.state is not sequences.CLOSED

    def arrives(self: Sequences, sequence: sequences.Sequence, worker_id: str, now: float) -> bool:
        if sequence.state is sequences.CLOSED or sequence.in_flight:
            return False
        sequence.lane.withdraw(sequence)
        sequence.state = sequences.MOVING
        return arrive(self, sequence, worker_id, now)

    return mock.patch.multiple(Sequences, leave=leaves, arrive=arrives)


def token_left_behind() -> Planted:
    """A worker that takes a sequence does not get its token."""
    record_of = give_and_take._record_of

    def planted(fields: list[Any]) -> SequenceRecord:
        record = record_of(fields)
        record.token = "another"
        return record

    return mock.patch.object(give_and_take, "_record_of", planted)


def left_twice() -> Planted:
    """The file of a sequence stays where it is when a server takes it."""

    def planted(self: LeftFiles, key: str, taken: str) -> bytes | None:
        if key != taken:
            shutil.copy(self._folder / key, self._folder / taken)
        return take(self, taken, taken)

    take = LeftFiles.take
    return mock.patch.object(LeftFiles, "take", planted)


def unseen_lists() -> Planted:
    """A server does not see that another one has a sequence."""
    return mock.patch.object(ServerLists, "place", lambda *_: Place.nowhere)


def idle_too_soon_in_files() -> Planted:
    """A sequence that is left may be idle for a fifth of the time that is left to it."""
    write = left_sequences.LeftSequences.write

    async def planted(self: Any, version: str, sequence_id: str, left: Any, rest: float, *given: Any) -> None:
        await write(self, version, sequence_id, left, rest / 5, *given)

    return mock.patch.object(left_sequences.LeftSequences, "write", planted)


def listed_too_late() -> Planted:
    """A server begins a sequence before its list says that it has it."""
    return mock.patch.object(server_lists, "_own", lambda places: {})


def ids_left_behind() -> Planted:
    """A worker that takes a sequence does not know the ids of its steps."""
    record_of = give_and_take._record_of

    def planted(fields: list[Any]) -> SequenceRecord:
        record = record_of(fields)
        record.ids, record.kept = None, None
        return record

    return mock.patch.object(give_and_take, "_record_of", planted)


def taken_without_migration() -> Planted:
    """A worker takes the state of another version as it is."""
    return mock.patch.object(Handover, "_migrated", lambda self, state, version: state)


def reopened_too_soon() -> Planted:
    """A worker that is to leave for two reasons takes sequences again once one of them is gone."""
    vacate = Scheduler.vacate

    def planted(self: Scheduler, worker_id: str) -> Iterable[sequences.Sequence]:
        found = vacate(self, worker_id)
        self._workers[worker_id].vacated = 1
        return found

    return mock.patch.object(Scheduler, "vacate", planted)


def let_go_too_soon() -> Planted:
    """A worker is let go although some of its sequences cannot move, as when no other one is open to them."""
    vacate = Dispatcher.vacate

    async def planted(self: Dispatcher, *given: Any) -> str:
        await vacate(self, *given)
        return ""

    return mock.patch.object(Dispatcher, "vacate", planted)


def silent_loss() -> Planted:
    """It is not remembered whose states were lost with a worker."""
    return mock.patch.object(ClosedIds, "remember", lambda *_: None)


#: By name; under "" nothing is planted.
MUTANTS: Final[dict[str, Callable[[], Planted]]] = {
    "": contextlib.nullcontext,
    **{
        each.__name__: each
        for each in (
            *(no_fence, answer_before_commit, no_number_check, no_digest, window_of_ids),
            *(journal_as_a_whole, ghost_after_the_end, wall_clock_for_leases),
            *(lost_entry, entry_applied_twice, checkpoint_ahead_of_the_log, earlier_state),
            *(migrated_state_of_the_old_version, log_of_two_versions),
            *(half_a_step_in_memory, a_failed_end_ends, silent_loss),
            *(state_before_its_step, state_as_it_was_sent_ahead, taken_before_all_has_come, giver_goes_on),
            taken_without_migration,
            *(token_left_behind, ids_left_behind, reopened_too_soon, let_go_too_soon),
            *(left_twice, unseen_lists, listed_too_late),
            idle_too_soon_in_files,
        )
    },
}
