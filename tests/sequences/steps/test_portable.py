"""Files with sequences: what is damaged in one, or could be in no store, is told and never stored."""

import io
import math
from dataclasses import replace
from typing import Any, Final

import pytest

from ts.sequences.steps.record import (
    Checkpoint,
    Damaged,
    KeptStep,
    SequenceRecord,
    checkpoint_of,
    digest_of,
    pack_logged_head,
)
from ts.sequences.steps.state_log import LogEntry, gap, whole_entry
from ts.sequences.steps.stores.maintenance import StoredSequence
from ts.sequences.steps.stores.portable import read_sequences, write_sequences
from ts.sequences.steps.stores.store import KeptAnswer

STATE: Final = b"a state"


def head(checkpoint: Checkpoint, **changes: Any) -> bytes:
    record = SequenceRecord(**{"incarnation": 2, "token": "t", "version": "1.0", "last": 5, **changes})
    return pack_logged_head(record, checkpoint)


#: After five steps: the state after the third, and what the fourth and fifth have appended.
SOUND: Final = StoredSequence(
    model="m",
    sequence_id="s",
    head=head(checkpoint_of(STATE, 3)._replace(log_from=4)),
    closed="",
    time_left=60.0,
    tokens=digest_of("earlier") + digest_of("t"),
    ids=digest_of("r1") + digest_of("r2"),
    state=STATE,
    answers=[KeptAnswer(KeptStep(number, f"r{number}", b"8 bytes!"), b"answer") for number in (1, 4, 5)],
    log=[LogEntry(4, b"four"), LogEntry(5, b"five")],
)


def written(*sequences: StoredSequence) -> bytes:
    out = io.BytesIO()
    write_sequences(sequences, out)
    return out.getvalue()


def test_a_sound_sequence_comes_back_as_it_was() -> None:
    over = replace(SOUND, sequence_id="over", closed="ended", state=None, log=[])
    assert list(read_sequences(io.BytesIO(written(SOUND, over)))) == [SOUND, over]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"head": b"x"}, "1 bytes are too few"),
        ({"head": head(Checkpoint(), last=0)}, "step 0 of sequence 2 with its id cannot be"),
        ({"head": head(Checkpoint(), incarnation=2**63)}, "cannot be"),
        ({"closed": "bored"}, "'bored' is no reason for its end"),
        ({"closed": "ended"}, "it is over, and has a state"),
        ({"time_left": math.nan}, "nan seconds cannot be left"),
        ({"time_left": 1e300}, "seconds cannot be left"),
        ({"time_left": "60"}, "str instead of float"),
        ({"tokens": b"seven b"}, "7 bytes cannot be the tokens"),
        ({"tokens": bytes(8 * 1_002)}, "8016 bytes cannot be the tokens"),
        ({"ids": bytes(8 * 6)}, "48 bytes cannot be its request ids"),
        ({"ids": 2**40}, "int instead of bytes"),
        ({"state": None}, "its state is missing"),
        ({"state": b"another"}, "the checksum of its state is wrong"),
        ({"log": [LogEntry(5, b"five")]}, "entries of its log are missing, or too many"),
        ({"log": [LogEntry(4, b""), LogEntry(5, b""), LogEntry(6, b"")]}, "missing, or too many"),
        ({"head": head(Checkpoint(log_from=1, step=3), last=2**61)}, "its state"),
        ({"log": [LogEntry(4, b"four"), gap(5)]}, "has earlier states, but not the present one"),
        ({"log": [LogEntry(4, b"four"), whole_entry(5, b"", ())]}, "is no state, though it begins as one"),
        (
            {"log": [LogEntry(4, b"four"), LogEntry(5, b"\xc1\xff\xff\xff\xff!")]},
            "is no state, though it begins as one",
        ),
        ({"log": [LogEntry(4, b"four"), LogEntry(5, b"\xc1!")]}, "is no state, though it begins as one"),
        ({"log": [LogEntry(4, b"four"), whole_entry(5, b"!", (6,))]}, "is no state, though it begins as one"),
        ({"answers": [SOUND.answers[0]] * 2}, "2 answers cannot be kept, each of another step"),
        ({"answers": [KeptAnswer(KeptStep(6, "", b""), b"")]}, "of a step that it has not had"),
        ({"answers": [KeptAnswer(KeptStep(1, "", b"short"), b"")]}, "digest of a request has the wrong size"),
        ({"answers": [KeptAnswer(KeptStep(1, b"r", b""), b"")]}, "bytes instead of str"),  # type: ignore[arg-type]
    ],
)
def test_what_no_store_can_have_is_told(changes: dict[str, Any], told: str) -> None:
    (read,) = read_sequences(io.BytesIO(written(replace(SOUND, **changes))))
    assert isinstance(read, Damaged)
    assert told in str(read)


def test_a_change_of_any_byte_and_any_cut_is_noticed() -> None:
    file = written(SOUND)
    for place in range(len(file)):
        for content in (file[:place], file[:place] + bytes([file[place] ^ 1]) + file[place + 1 :]):
            try:
                read = list(read_sequences(io.BytesIO(content)))
            except Damaged:
                continue
            assert len(read) != 1 or isinstance(read[0], Damaged), place


@pytest.mark.parametrize("more", [b"x", written(SOUND)])
def test_what_follows_an_export_is_not_passed_over(more: bytes) -> None:
    with pytest.raises(Damaged, match="the file goes on after its end"):
        list(read_sequences(io.BytesIO(written(SOUND) + more)))
