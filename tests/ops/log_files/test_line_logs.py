"""Logs with a line for each request: when their lines are written, and what happens to those that nobody reads."""

import asyncio
import logging
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ops.log_files.log_files import TIME, configure, lines, restored_loggers, texts_of, write

from torchserve_py.base.logs.line_logs import LineBatch, LineLog
from torchserve_py.ops.log_files import handlers, log_thread
from torchserve_py.ops.log_files.handlers import Console, InThread
from torchserve_py.ops.log_files.log_thread import wait_until_written

__all__ = ["restored_loggers"]

pytestmark = pytest.mark.usefixtures("restored_loggers")


def test_lines_have_the_time_of_what_they_tell_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(tmp_path)
    log: LineLog[str] = LineLog("TS_METRICS", texts_of)
    clock = iter([1717098363.0, 1717098363.5, 1717098364.25])
    with monkeypatch.context() as patched:
        patched.setattr("torchserve_py.base.logs.line_logs.time.time", lambda: next(clock))
        for text in ("one", "two", "three"):
            log.note(text)
    log.flush()
    assert wait_until_written(30)
    times = [line.partition(" - ")[0].rpartition(":")[2] for line in lines(tmp_path / "metrics" / "ts_metrics.log")]
    assert times == ["03,000", "03,500", "04,250"]


def test_what_is_noted_late_stands_where_it_belongs(tmp_path: Path) -> None:
    configure(tmp_path)
    log: LineLog[str] = LineLog("TS_METRICS", texts_of)
    log.awaits(lambda: log.note_all([(1.0, "first"), (3.0, "third")]))
    log.note("second", 2.0)
    log.flush()
    log.flush()
    assert wait_until_written(30)
    texts = [line.rpartition(" ")[2] for line in lines(tmp_path / "metrics" / "ts_metrics.log")]
    assert texts == ["first", "second", "third"]


def test_lines_are_handed_over_at_most_50_milliseconds_after_what_they_tell_of(tmp_path: Path) -> None:
    configure(tmp_path)
    delays: list[float] = []
    log: LineLog[str] = LineLog("TS_METRICS", texts_of)

    async def note() -> None:
        loop = asyncio.get_running_loop()
        with pytest.MonkeyPatch.context() as patched:

            def at_once(delay: float, callback: Callable[[], None]) -> asyncio.Handle:
                delays.append(delay)
                return loop.call_soon(callback)

            patched.setattr(loop, "call_later", at_once)
            for text in ("one", "two"):
                log.note(text)
            await asyncio.sleep(0)
            log.note("three")
            await asyncio.sleep(0)

    asyncio.run(note())
    assert wait_until_written(30)
    assert [line.rpartition(" ")[2] for line in lines(tmp_path / "metrics" / "ts_metrics.log")] == [
        "one",
        "two",
        "three",
    ]
    assert len(delays) == 2
    assert max(delays) <= 0.05


def test_an_entry_may_have_several_lines(tmp_path: Path) -> None:
    configure(tmp_path)
    write("TS_METRICS", "one\ntwo", "three")
    written = lines(tmp_path / "metrics" / "ts_metrics.log")
    assert [re.fullmatch(rf"{TIME} - (\w+)", line)[1] for line in written] == ["one", "two", "three"]  # type: ignore[index]


class Disk(logging.Handler):
    """Writes nothing before it is `free`, like a disk that hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.written: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.free.wait()
        self.written.append(self.format(record))


def log_to(disk: Disk) -> logging.Logger:
    logger = logging.getLogger("some.module")
    logger.propagate, logger.handlers = False, [InThread(disk)]
    return logger


def test_a_disk_that_hangs_stops_nobody_who_logs() -> None:
    disk = Disk()
    logger = log_to(disk)
    texts = [f"line {number}" for number in range(100)]
    for text in texts:
        logger.warning(text)
    assert disk.written == []
    disk.free.set()
    assert wait_until_written(30)
    assert disk.written == texts


def test_what_is_too_much_for_a_disk_is_dropped_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert wait_until_written(30)  # what other tests have logged
    monkeypatch.setattr(log_thread, "MOST_LINES", 10)
    disk = Disk()
    logger = log_to(disk)
    for number in range(100):
        logger.warning("line %d", number)
    disk.free.set()
    assert wait_until_written(30)
    assert disk.written == [f"line {number}" for number in range(10)]
    assert "90 lines of logs were dropped: writing them took too long" in caplog.text


def test_what_a_message_refers_to_may_change_once_it_is_logged() -> None:
    disk = Disk()
    state = ["before"]
    log_to(disk).warning("it is %s", state)
    state.append("after")
    disk.free.set()
    assert wait_until_written(30)
    assert disk.written == ["it is ['before']"]


def test_lines_that_nobody_reads_are_dropped_and_hold_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader, os.fdopen(writing, "w") as stream:
        console = Console(stream, 0.5)
        batch = LineBatch([(0.0, "x" * 100)] * 1000, texts_of, lambda _: {})
        for _ in range(10):
            console.emit(logging.LogRecord("ACCESS_LOG", logging.INFO, "", 0, batch, (), None))
        stream.write("of the server itself\n")  # finds room
        stream.flush()
        os.set_blocking(reading, False)
        *written, last = (reader.read() or b"").decode().splitlines()
        assert last == "of the server itself"
        assert 0 < len(written) < 1000
        assert {len(line) for line in written} == {len("1970-01-01T00:00:00,000 - ") + 100}
        assert "standard output" not in caplog.text
        console.emit(logging.LogRecord("ACCESS_LOG", logging.INFO, "", 0, batch, (), None))
    (told,) = (each.getMessage() for each in caplog.records if each.name == handlers.__name__)
    assert told == f"{10_000 - len(written)} lines were not written to standard output, because nobody read it"
