"""The files of a journal: rotation, retention, encryption, and what a reader makes of damage."""

import json
import os
import time
from io import FileIO
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.tools.journal import journal_files, read_journal
from torchserve_py.tools.journal.journal_files import JournalFiles
from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.journal.read_journal import JournalReader, JournalUnreadable
from torchserve_py.tools.journal.sealed_lines import KeyUnusable, key_in

KEY = bytes(32)
WEEK = 168


def record(number: int) -> dict[str, Any]:
    known: dict[str, Any] = dict.fromkeys(JournalRecord.__required_keys__)
    texts = dict.fromkeys(("model", "via", "method", "path", "route", "body_form", "answer", "answer_form"), "m")
    maps = {name: {} for name in ("headers", "sequence_headers", "answer_headers")}
    times = {"part_bytes": [], "part_seconds": [], "waiting_seconds": 0, "running_seconds": 0.5}
    return {**known, **texts, **maps, **times, "time": f"2026-01-01T00:00:{number:02}+00:00", "step": number}


def line(number: int) -> bytes:
    return json.dumps(record(number)).encode() + b"\n"


def steps(folder: Path, key: bytes | None = None) -> list[int | None]:
    reader = JournalReader([folder], key)
    try:
        return [reader.read(place)["step"] for place in reader.places]
    finally:
        reader.close()


@pytest.mark.parametrize("key", [None, KEY])
def test_what_was_written_is_read_in_the_order_of_the_requests(key: bytes | None, tmp_path: Path) -> None:
    for numbers in ((3, 1), (2,)):  # by two servers, or one that was restarted
        JournalFiles(tmp_path, WEEK, 1 << 30, key).write([line(number) for number in numbers])
    assert steps(tmp_path, key) == [1, 2, 3]
    assert len([*tmp_path.glob("*.jsonl")]) == 2


def test_the_oldest_files_go_when_all_have_too_many_bytes(tmp_path: Path) -> None:
    files = JournalFiles(tmp_path, WEEK, 8 * len(line(1)), None)
    for number in range(1, 31):
        files.write([line(number)])
    kept = steps(tmp_path)
    assert kept == [*range(31 - len(kept), 31)]
    assert sum(file.stat().st_size for file in tmp_path.glob("*.jsonl")) <= 9 * len(line(1))


def test_old_files_go(tmp_path: Path) -> None:
    old = JournalFiles(tmp_path, 1, 1 << 30, None)
    old.write([line(1)])
    (file,) = tmp_path.glob("*.jsonl")
    os.utime(file, (time.time() - 3700,) * 2)
    JournalFiles(tmp_path, 1, 1 << 30, None).write([line(2)])
    assert steps(tmp_path) == [2]


class Disk:
    """A disk that refuses, after it has taken a part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, truncates: bool = True) -> None:
        self.is_full = True
        self.takes = 10
        disk = self

        class File(FileIO):
            def write(self, content: Any) -> int:
                if not disk.is_full:
                    return super().write(content)
                if disk.takes:
                    taken, disk.takes = disk.takes, 0
                    return super().write(bytes(content)[:taken])
                disk.takes = 10
                raise OSError(28, "No space left on device")

            def truncate(self, size: int | None = None) -> int:
                if not truncates:
                    raise OSError(5, "Input/output error")
                return super().truncate(size)

        monkeypatch.setattr(journal_files, "FileIO", File)


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize("truncates", [True, False])
def test_a_disk_that_refuses_gets_no_file_for_each_attempt(
    key: bytes | None, truncates: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch, truncates=truncates)
    files = JournalFiles(tmp_path, WEEK, 1 << 30, key)
    for number in range(50):
        with pytest.raises(OSError, match="No space"):
            files.write([line(number)])
    assert [*tmp_path.iterdir()] == []
    disk.is_full = False
    files.write([line(1)])
    files.write([line(2)])
    disk.is_full = True
    for number in range(50):
        with pytest.raises(OSError, match="No space"):
            files.write([line(number)])
    if truncates:
        assert steps(tmp_path, key) == [1, 2]
        assert all(each.endswith(b"\n") for each in (file.read_bytes() for file in tmp_path.iterdir()))
    disk.is_full = False
    files.write([line(3)])
    assert steps(tmp_path, key) == [1, 2, 3]
    assert len([*tmp_path.iterdir()]) == (1 if key is None and truncates else 2)


@pytest.mark.parametrize(("field", "value"), [("headers", None), ("model", 5), ("status", "200"), ("sequence", 1)])
def test_a_record_with_values_of_another_kind_is_damaged(field: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + json.dumps({**record(2), field: value}).encode() + b"\n")
    reader = JournalReader([tmp_path], None)
    assert (len(reader.places), reader.damaged) == (1, 1)


def test_damaged_and_incomplete_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(line(1) + b'{"time": 1}\n' + b"rubbish\n" + line(2) + b'{"time')
    reader = JournalReader([tmp_path], None)
    assert (len(reader.places), reader.damaged, reader.incomplete) == (2, 2, 1)


def test_sealed_lines_cannot_be_moved_or_read_without_the_key(tmp_path: Path) -> None:
    JournalFiles(tmp_path, WEEK, 1 << 30, KEY).write([line(1), line(2)])
    (file,) = tmp_path.glob("*.jsonl")
    with pytest.raises(JournalUnreadable, match="--key-file"):
        JournalReader([tmp_path], None)
    with pytest.raises(JournalUnreadable, match="another key"):
        JournalReader([tmp_path], bytes(31) + b"x")
    head, first, second = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(head + first + second.replace(b'"n":1', b'"n":5'))
    reader = JournalReader([tmp_path], KEY)
    assert (len(reader.places), reader.damaged) == (1, 1)


@pytest.mark.parametrize(("text", "said"), [("AAAA", "has 3 bytes, it must have 32"), ("é", "is not Base64")])
def test_a_key_of_another_form_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(KeyUnusable, match=said):
        key_in(tmp_path / "key")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        JournalFiles(tmp_path / "file" / "m", WEEK, 1, None)


def sealed(folder: Path, numbers: range) -> tuple[Path, bytes, list[bytes]]:
    """Return an encrypted file, its first line, and its other lines."""
    JournalFiles(folder, WEEK, 1 << 30, KEY).write([line(number) for number in numbers])
    (file,) = folder.glob("*.jsonl")
    first, *lines = file.read_bytes().splitlines(keepends=True)
    return file, first, lines


@pytest.mark.parametrize(
    ("order", "read", "damaged", "missing"),
    [
        ([0, 1, 2, 3], [0, 1, 2, 3], 0, 0),
        ([0, 3], [0, 3], 0, 2),
        ([1, 2, 3], [1, 2, 3], 0, 1),
        ([0, 1, 1, 2, 3], [0, 1, 2, 3], 1, 0),
        ([0, 2, 1, 3], [0, 2, 3], 1, 1),
        ([3, 0, 1, 2], [3], 3, 3),
        ([0, None, 2, 3], [0, 2, 3], 1, 0),
        ([0, None, 3], [0, 3], 1, 1),
        ([0, 1, None, 2, 3], [0, 1, 2, 3], 1, 0),
        ([None, 1, 2, 3], [1, 2, 3], 1, 0),
    ],
)
def test_sealed_lines_that_are_missing_double_or_moved_are_noticed(
    order: list[int | None], read: list[int], damaged: int, missing: int, tmp_path: Path
) -> None:
    file, first, lines = sealed(tmp_path, range(4))
    file.write_bytes(first + b"".join(b'{"n": 1}\n' if each is None else lines[each] for each in order))
    reader = JournalReader([file], KEY)
    assert [reader.read(place)["step"] for place in reader.places] == read
    assert (reader.damaged, reader.missing) == (damaged, missing)
    assert order[0] == 3 or reader.places[-1].lost == damaged + missing


@pytest.mark.parametrize("number", [1.5, "1", None, -1, 2**100, True, [1]])
def test_a_sealed_line_with_another_number_is_damaged(number: Any, tmp_path: Path) -> None:
    file, first, lines = sealed(tmp_path, range(3))
    changed = {**json.loads(lines[1]), "n": number}
    if number is not True:  # which is 1
        file.write_bytes(first + lines[0] + json.dumps(changed).encode() + b"\n" + lines[2])
    reader = JournalReader([file], KEY)
    assert (len(reader.places), reader.damaged) == ((3, 0) if number is True else (2, 1))


def test_with_a_key_only_sealed_lines_count_and_once(tmp_path: Path) -> None:
    file, first, lines = sealed(tmp_path, range(3))
    copied = tmp_path / "z.jsonl"
    copied.write_bytes(first + lines[0])
    with pytest.raises(JournalUnreadable, match=r"z\.jsonl is a copy of "):
        JournalReader([tmp_path], KEY)
    copied.write_bytes(line(1))
    with pytest.raises(JournalUnreadable, match=r"z\.jsonl is not encrypted; replay it without --key-file"):
        JournalReader([tmp_path], KEY)
    copied.unlink()
    assert len(JournalReader([tmp_path, file], KEY).places) == 3, "a file that is named twice is read once"


def test_a_later_format_in_one_line_is_damage(tmp_path: Path) -> None:
    later = json.dumps({**record(2), "format": 9}).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(line(1) + later + line(3))
    reader = JournalReader([tmp_path], None)
    assert (len(reader.places), reader.damaged) == (2, 1)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "9999-12-31T23:59:59+00:00", "now", ""])
def test_a_time_that_cannot_be_is_damage(time: str, tmp_path: Path) -> None:
    changed = json.dumps({**record(2), "time": time}).encode() + b"\n"
    (tmp_path / "a.jsonl").write_bytes(line(1) + changed + line(3))
    reader = JournalReader([tmp_path], None)
    assert len(reader.places) + reader.damaged == 3
    assert [place.lost for place in reader.places][-1] == reader.damaged


def test_a_line_that_is_longer_than_any_record_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_journal, "_LONGEST_LINE", 2000)
    (tmp_path / "a.jsonl").write_bytes(line(1) + b"x" * 9000 + b"\n" + line(2) + b"y" * 9000)
    reader = JournalReader([tmp_path], None)
    assert [reader.read(place)["step"] for place in reader.places] == [1, 2]
    assert (reader.damaged, reader.incomplete) == (1, 1)


def test_a_fifo_is_no_file_of_a_journal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(JournalUnreadable, match="it is a FIFO, not a regular file"):
        JournalReader([tmp_path], None)
