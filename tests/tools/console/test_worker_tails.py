"""The last lines of each worker are kept, and no more than that."""

import logging
from collections.abc import Iterator

import pytest

from torchserve_py.tools.console import worker_tails
from torchserve_py.tools.console.worker_tails import MOST_CHARACTERS, MOST_LINES, WorkerTails

model_log = logging.getLogger("MODEL_LOG")
supervisor_log = logging.getLogger("torchserve_py.core.workers.supervisor")


@pytest.fixture
def tails() -> Iterator[WorkerTails]:
    kept = WorkerTails()
    kept.attach()
    yield kept
    kept.detach()


def prints(worker: str, text: str, stream: str = "stdout", **more: str) -> None:
    model_log.warning("%s", text, extra={"of_worker": worker, "source": stream, **more})


def test_lines_are_told_apart_by_worker_and_by_who_says_them(tails: WorkerTails) -> None:
    prints("9000", "hello")
    prints("9001", "other")
    prints("9000", "oh", "stderr")
    supervisor_log.error("Worker %s died", "9000", extra={"of_worker": "9000"})
    model_log.warning("of nobody")
    lines = tails.since("9000", 0)
    assert [(each.number, each.source, each.text) for each in lines] == [
        (1, "stdout", "hello"),
        (2, "stderr", "oh"),
        (3, "server", "Worker 9000 died"),
    ]
    assert tails.since("9000", 2) == lines[2:]
    assert tails.since("9000", 3) == tails.since("9009", 0) == []


def test_a_traceback_comes_with_its_line(tails: WorkerTails) -> None:
    prints("1", "Loading failed", exception="Traceback\nValueError: x")
    assert tails.since("1", 0)[0].text == "Loading failed\nTraceback\nValueError: x"


def test_lines_characters_and_workers_are_bounded(tails: WorkerTails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_tails, "MOST_WORKERS", 3)
    for number in range(MOST_LINES + 5):
        prints("1", f"line {number}")
    prints("1", "x" * 5000)
    lines = tails.since("1", 0)
    assert (len(lines), lines[-1].number, len(lines[-1].text)) == (MOST_LINES, MOST_LINES + 6, MOST_CHARACTERS)
    for worker in ("2", "1", "3", "4"):
        prints(worker, "more")
    assert tails.since("2", 0) == []
    assert tails.since("1", 0)[-1].text == "more"


def test_nothing_is_kept_once_detached(tails: WorkerTails) -> None:
    tails.detach()
    prints("1", "hello")
    assert tails.since("1", 0) == []
