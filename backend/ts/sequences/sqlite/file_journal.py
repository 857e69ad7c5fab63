"""The journal of the file store: what commits have changed, and the tables do not say yet.

Everything here runs within a transaction of the caller's.
"""

import itertools
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from ts.sequences.sqlite.file_pieces import PieceChange, checked_bytes, pack_kept, read_change
from ts.sequences.sqlite.file_tables import SLOT, Tables
from ts.sequences.sqlite.sqlite_file import is_damage
from ts.sequences.steps.record import NO_STATE, Checkpoint, Damaged, slot_of
from ts.sequences.steps.state_log import pack_entry

#: States that are larger (bytes) have a table of their own.
INLINE: Final = 2**14
#: Keeps an answer.
KEEP: Final = "INSERT OR REPLACE INTO answers (key, step, answer) VALUES (?, ?, ?)"
_UPDATE: Final = (
    "UPDATE sequences SET lease_until = ?, expires_at = ?, closed = ?, head = ?, state = ?"
    " WHERE number = ? AND fence = ?"
)
_UPDATE_LOGGED: Final = (
    "UPDATE sequences SET lease_until = ?, expires_at = ?, closed = ?, head = ? WHERE number = ? AND fence = ?"
)
#: Keeps an entry of a log.
KEEP_ENTRY: Final = "INSERT OR REPLACE INTO log (sequence, number, entry) VALUES (?, ?, ?)"


def journal_of(tables: Tables, number: int) -> list[PieceChange]:
    """Return the changes of a sequence that are not in the tables yet. Raises Damaged."""
    found = tables.file.execute("SELECT entry FROM changes WHERE sequence = ? ORDER BY number", (number,))
    changes = [_change(entry) for (entry,) in found.fetchall()]
    return [change for change in changes if change.sequence == number]


def _change(entry: Any) -> PieceChange:
    try:
        return read_change(checked_bytes(entry))
    except Damaged as damage:
        raise Damaged(f"a change of it cannot be read: {damage}") from damage


def fold(tables: Tables) -> None:
    """Apply the journal to the tables, whichever process has written it."""
    found = tables.file.execute("SELECT sequence, entry, lasts FROM changes ORDER BY number DESC").fetchall()
    if not found:
        return
    changes: dict[int, list[PieceChange]] = {}
    unreadable: list[tuple[Any, Any, Damaged]] = []
    floors: dict[int, int] = {}
    # By sequence of which the changes so far have the state and all answers that are kept: the ids before them.
    replaced: dict[int, list[bytes]] = {}
    for sequence, entry, lasts in found:
        if lasts == 0 and sequence in replaced:
            continue
        try:
            change = read_change(checked_bytes(entry))
        except Damaged as damage:
            unreadable.append((sequence, entry, damage))
            continue
        number = change.sequence
        own = changes.get(number)
        if own is None:
            own = changes[number] = []
            floors[number] = change.latest.last - tables.kept
        elif number in replaced and change.tokens is None and change.log is None:
            if change.incarnation == own[-1].incarnation:
                replaced[number].append(change.new_ids)
            continue
        elif number in replaced:
            _add_earlier_ids(own, replaced[number])
        own.append(change)
        if change.log is None and change.latest.last <= floors[number]:
            replaced.setdefault(number, [])
    for number, own in changes.items():
        _add_earlier_ids(own, replaced.get(number, []))
        own.reverse()
    apply(tables, changes)
    for sequence, entry, problem in unreadable:
        tables.set_aside(sequence, f"a change of it cannot be read: {problem}", entry)
    tables.file.execute("DELETE FROM changes")


def _add_earlier_ids(changes: list[PieceChange], earlier: list[bytes]) -> None:
    """Add ids to the earliest of some changes, which are in reverse order, as are the ids; empty the list of these."""
    if earlier:
        earliest = changes[-1]
        changes[-1] = earliest._replace(new_ids=b"".join([*reversed(earlier), earliest.new_ids]))
        earlier.clear()


def apply(tables: Tables, changes: Mapping[int, list[PieceChange]]) -> None:
    """Write the changes of sequences, by their numbers, in order."""
    try:
        refused = _apply(tables, changes)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        refused = [number for number, own in changes.items() if not _is_applied(tables, {number: own})]
    for number in refused:
        if tables.find_number(number) is not None:
            for change in changes[number]:
                state = change.latest.state
                tables.set_aside(number, "a change of it could not be written", state)


def _is_applied(tables: Tables, change: Mapping[int, list[PieceChange]]) -> bool:
    try:
        return not _apply(tables, change)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return False


def _apply(tables: Tables, changes: Mapping[int, list[PieceChange]]) -> list[int]:
    """Write changes; return the sequences to which the changes do not belong."""
    rows, logged, states = [], [], []
    entries: list[tuple[int, int, bytes]] = []
    dropped: list[tuple[int, int]] = []
    whole: set[int] = set()
    for number, own in changes.items():
        latest = own[-1].latest
        base = _whole_state(own)
        until = latest.lease_until, latest.expires_at, latest.closed, latest.head()
        checkpoint = NO_STATE if latest.checkpoint is None else Checkpoint._make(latest.checkpoint)
        entries += _entries_of(number, own[0 if base is None else base.rest :], checkpoint.log_from)
        if base is None:
            if checkpoint.step < 0 and checkpoint.log_from > 1:
                dropped.append((number, checkpoint.log_from))
            logged.append((*until, number, latest.fence))
            continue
        whole.add(number)
        state = base.state
        if state is not None and len(state) > INLINE:
            states.append((number, state))
            state = None
        rows.append((*until, state, number, latest.fence))
    refused = _refused(tables, _UPDATE, rows) + _refused(tables, _UPDATE_LOGGED, logged)
    if refused:
        changes = {number: own for number, own in changes.items() if number not in refused}
        states = [each for each in states if each[0] not in refused]
        entries = [each for each in entries if each[0] not in refused]
        dropped = [each for each in dropped if each[0] not in refused]
        whole.difference_update(refused)
    execute, executemany = tables.file.execute, tables.file.executemany
    for table in ("states", "log"):
        if execute(f"SELECT EXISTS (SELECT 1 FROM {table})").fetchone()[0]:  # noqa: S608
            executemany(f"DELETE FROM {table} WHERE sequence = ?", [(number,) for number in whole])  # noqa: S608
    executemany(KEEP, itertools.chain.from_iterable(_kept_of(tables, *each) for each in changes.items()))
    executemany("INSERT INTO states (sequence, state) VALUES (?, ?)", states)
    executemany(KEEP_ENTRY, entries)
    executemany("DELETE FROM log WHERE sequence = ? AND number < ?", dropped)
    for number, own in changes.items():
        _note(tables, number, own)
    return refused


def _refused(tables: Tables, update: str, rows: list[Any]) -> list[int]:
    """Write the rows of sequences; return the numbers of those to which they do not belong."""
    if not rows or tables.file.executemany(update, rows).rowcount == len(rows):
        return []
    return [row[-2] for row in rows if tables.file.execute(update, row).rowcount != 1]


class _WholeState(NamedTuple):
    """The latest state that was written whole among some changes of a sequence.

    Attributes:
        state: None if the sequence had none.
        rest: The place of the first change behind it: these have written to the log.
    """

    state: bytes | None
    rest: int


def _whole_state(changes: list[PieceChange]) -> _WholeState | None:
    """Return the state that the changes of a sequence leave; None if they have only added to its log."""
    for place in range(len(changes) - 1, -1, -1):
        change = changes[place]
        if change.log is None:
            return _WholeState(change.latest.state, place + 1)
        step, _, log_from = change.latest.checkpoint
        if step < 0 and change.log[0][0] == log_from:  # it begins a log, without a state
            return _WholeState(None, place)
    return None


def _entries_of(number: int, changes: list[PieceChange], log_from: int) -> Iterable[tuple[int, int, bytes]]:
    """Return the rows of a log that now begins with a step that changes write; later ones replace earlier ones."""
    for change in changes:
        for step, entries in change.log:
            if step >= log_from:
                yield number, step, pack_entry(change.incarnation, step, entries, owner=number)


def _kept_of(tables: Tables, number: int, changes: list[PieceChange]) -> Iterable[tuple[int, bytes, bytes]]:
    """Return the rows of the answers that are kept after the changes."""
    incarnation, last = changes[-1].incarnation, changes[-1].latest.last
    latest: dict[int, tuple[PieceChange, Any, bytes]] = {}
    for change in changes:
        if change.incarnation == incarnation:
            for step, answer in change.kept:
                latest[step[0]] = change, step, answer
    rows = []
    for step_number, (change, step, answer) in latest.items():
        if step_number > last - tables.kept or step_number == 1:
            piece = pack_kept(number, change.latest.fence, incarnation, step, answer)
            rows.append((slot_of(step_number, tables.kept) * SLOT + number, piece, answer))
    return rows


def _note(tables: Tables, number: int, changes: list[PieceChange]) -> None:
    """Write the changes of what recognizes repeated steps."""
    incarnation = changes[-1].incarnation
    ids = b"".join([change.new_ids for change in changes if change.incarnation == incarnation])
    if ids:
        tables.add_ids(number, incarnation, ids)
    for change in reversed(changes):
        if change.tokens:
            tables.put_tokens(number, change.tokens)
            break
