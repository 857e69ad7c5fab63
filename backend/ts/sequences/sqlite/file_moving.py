"""Sequences of the file store as they are moved from one store to another.

Everything here runs within a transaction of the caller's, on tables that are up to date with the journal.
"""

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite.file_journal import INLINE, KEEP, KEEP_ENTRY
from ts.sequences.sqlite.file_pieces import checked_bytes, pack_kept, unpack_kept
from ts.sequences.sqlite.file_rows import MOST_FENCE, FileRow, name_of, text_of
from ts.sequences.sqlite.file_tables import SLOT, Tables
from ts.sequences.steps.record import Damaged, slot_of, unpack_head
from ts.sequences.steps.sequence_limits import MOST_KEPT_ANSWERS
from ts.sequences.steps.state_log import pack_entry
from ts.sequences.steps.stores.maintenance import Examined, StoredSequence
from ts.sequences.steps.stores.portable import pack_sequence
from ts.sequences.steps.stores.store import ENDS_WORKERS, KeptAnswer


def put_latest(tables: Tables, sequence: StoredSequence) -> None:
    """Store a sequence that was somewhere else, unless there is one with its id that was used later.

    The one that loses is kept for people if it is open.
    """
    model, sequence_id = name_of(sequence.model), name_of(sequence.sequence_id)
    found = tables.find(model, sequence_id)
    if found is not None:
        there = examine(tables, found[0])
        rank = (not sequence.closed, sequence.time_left)
        loser: StoredSequence | None = sequence
        if there is None or (there.sequence and rank > (not there.sequence.closed, there.sequence.time_left)):
            loser = None if there is None else there.sequence
            put(tables, sequence)
        if loser is not None and not loser.closed:
            problem = "another version of the model had an open sequence with its id, which was used later"
            tables.keep_for_people(model, sequence_id, problem, pack_sequence(loser))
    else:
        put(tables, sequence)


def put(tables: Tables, sequence: StoredSequence) -> None:
    """Store a sequence that was somewhere else, instead of the one with its id that there may be."""
    model, sequence_id = name_of(sequence.model), name_of(sequence.sequence_id)
    found, execute, fence = tables.find(model, sequence_id), tables.file.execute, 1
    if found is not None:
        fence = found[4] + 1 if type(found[4]) is int and 0 < found[4] < MOST_FENCE else MOST_FENCE // 2
        tables.forget(found[0])
    state = sequence.state
    is_large = state is not None and len(state) > INLINE
    number = tables.add(model, sequence_id, fence, "", 0.0, boot_time() + sequence.time_left)
    execute(
        "UPDATE sequences SET closed = ?, head = ?, state = ? WHERE number = ?",
        (sequence.closed, sequence.head, None if is_large else state, number),
    )
    if is_large:
        execute("INSERT INTO states (sequence, state) VALUES (?, ?)", (number, state))
    incarnation = unpack_head(sequence.head).incarnation
    size = max(1, sum(each.step.number > 1 for each in sequence.answers))
    for step, answer in sequence.answers:
        key = slot_of(step.number, size) * SLOT + number
        execute(KEEP, (key, pack_kept(number, 0, incarnation, step, answer), answer))
    if sequence.ids:
        tables.add_ids(number, incarnation, sequence.ids)
    if sequence.tokens:
        tables.put_tokens(number, sequence.tokens)
    for step_number, entries in sequence.log:
        execute(KEEP_ENTRY, (number, step_number, pack_entry(incarnation, step_number, entries, owner=number)))


def examine(tables: Tables, number: int) -> Examined | None:
    """Read all of a sequence; None if no step of it was applied."""
    found = tables.find_number(number)
    if found is None:
        return None
    model, sequence_id = text_of(found[1]), text_of(found[2])
    problems: list[str] = []
    try:
        row = FileRow.valid(found)
        head = tables.head(row)
        record = tables.record(row, head)
        if not record.has_begun:
            return None
        state, log = tables.state(row, head), tables.log(row, head, problems)
        if tables.ends_workers(number, head):
            problems.append(ENDS_WORKERS)
    except Damaged as damage:
        return Examined(model, sequence_id, [str(damage)], None)
    answers = []
    for slot in range(MOST_KEPT_ANSWERS + 1):
        try:
            kept = _in_slot(tables, slot, number, record.incarnation)
        except Damaged as damage:
            problems.append(f"a kept answer cannot be read: {damage}")
            continue
        if kept is not None:
            answers.append(kept)
    sequence = StoredSequence(
        model=model,
        sequence_id=sequence_id,
        head=checked_bytes(row.head),
        closed=row.closed,
        time_left=row.expires_at - boot_time(),
        tokens=record.tokens,
        ids=bytes(record.ids or b""),
        state=state,
        answers=sorted(answers),
        log=log,
    )
    return Examined(model, sequence_id, problems, sequence)


def _in_slot(tables: Tables, slot: int, number: int, incarnation: int) -> KeptAnswer | None:
    found = tables.file.execute("SELECT step, answer FROM answers WHERE key = ?", (slot * SLOT + number,)).fetchone()
    if found is None:
        return None
    piece = unpack_kept(found[0], number)
    return KeptAnswer(piece.step, piece.check(checked_bytes(found[1]))) if piece.incarnation == incarnation else None
