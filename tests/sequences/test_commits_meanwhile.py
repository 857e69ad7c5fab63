"""A worker that is killed while a commit is under way and the next batch runs: every step counts once, none is lost."""

import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.e2e.running_server import RunningServer, eventually, model_folder
from tests.programs import need_program
from tests.redis_server import RedisServer

CLIENTS = 6
# Counts the steps of each sequence. While the file "hold before" or "hold after" exists, a commit beside the handler
# stays where it is, before or after it is written, and so does the handler; "before held" and "before beside" tell so.
# A commit that no batch runs beside goes on: a worker without further requests waits for it.
HANDLER = """
import os
import threading
import time
from pathlib import Path

from ts.sequence import SequenceCache
from ts.sequences.steps.commit_thread import CommitOverlap
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.redis.redis_store import RedisStore

MARKS = Path(os.environ["MARKS"])
held = []
deciding = threading.Lock()


def hold(when):
    if threading.current_thread() is threading.main_thread() or not (MARKS / f"hold {when}").exists():
        return
    held.append(when)
    end = time.monotonic() + 1
    while not (MARKS / f"{when} beside").exists():
        with deciding:
            if time.monotonic() > end and not (MARKS / f"{when} beside").exists():
                held.remove(when)
                return
        time.sleep(0.01)
    (MARKS / f"{when} held").touch()
    stay(when)


def stay(when):
    while (MARKS / f"hold {when}").exists():
        time.sleep(0.01)


def slow(commit):
    def wrapped(*arguments):
        time.sleep(0.002)
        hold("before")
        result = commit(*arguments)
        hold("after")
        return result

    return wrapped


class Handler:
    def initialize(self, context):
        self.counts = SequenceCache(context)
        for store in (FileStore, RedisStore):
            store.commit = slow(store.commit)
        # What is measured depends on how busy the machine is.
        CommitOverlap.pays = property(lambda overlap: True, lambda overlap, pays: None)

    def handle(self, data, context):
        ids = [context.get_sequence_id(index) for index in range(len(data))]
        for each in ids:
            self.counts[each] = self.counts.get(each, 0) + 1
        time.sleep(0.01)
        with deciding:
            beside = list(held)
            for when in beside:
                (MARKS / f"{when} beside").touch()
        for when in beside:
            stay(when)
        return [str(self.counts[each]) for each in ids]
"""

CONFIG = """
    minWorkers: 1
    maxWorkers: 1
    batchSize: 2
    sequenceBatching: true
    sequenceMaxIdleMSec: 60000
    maxNumSequence: 100
    handler:
      cache: {store: %s, %s, lease: 600}
"""


@pytest.fixture(params=["file", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunningServer]:
    if request.param == "file":
        yield from _serve(tmp_path, f"file, path: {tmp_path / 'sequences.db'}")
        return
    need_program("redis-server")
    (tmp_path / "redis").mkdir()
    with RedisServer(tmp_path / "redis") as redis:
        yield from _serve(tmp_path, f"redis, url: '{redis.url}'")


def _serve(folder: Path, store: str) -> Iterator[RunningServer]:
    model = model_folder(folder, "counts", HANDLER, textwrap.dedent(CONFIG % tuple(store.split(", ", 1))))
    with RunningServer({"counts": model}, environment={"MARKS": str(folder)}) as running:
        running.wait_ready()
        yield running


def test_a_worker_killed_between_a_handler_and_a_commit_beside_it(server: RunningServer, tmp_path: Path) -> None:
    stop = threading.Event()
    answers: list[list[str]] = [[] for _ in range(CLIENTS)]

    def count(client: int) -> None:
        """Step until the end."""
        while not stop.is_set():
            answer = server.predict("counts", "", sequence=f"s{client}")
            answers[client].append(answer.text if answer.status_code == 200 else f"{answer.status_code} {answer.text}")

    def all_go_on() -> None:
        """Wait until the worker has all sequences: the next batch then needs nothing of the store."""
        before = [len(each) for each in answers]
        pairs = list(zip(answers, before, strict=True))
        eventually(lambda: all(len(each) > number + 1 for each, number in pairs), "each client gets answers")

    with ThreadPoolExecutor(CLIENTS) as clients:
        counts = [clients.submit(count, client) for client in range(CLIENTS)]
        try:
            for when in ("before", "after"):
                all_go_on()
                hold = tmp_path / f"hold {when}"
                hold.touch()
                eventually(
                    (tmp_path / f"{when} held").exists, f"a commit beside the handler waits {when} it is written"
                )
                eventually((tmp_path / f"{when} beside").exists, "the next batch runs")
                server.workers()[0].kill()
                hold.unlink()
            all_go_on()
        finally:
            stop.set()
    for counted, answered in zip(counts, answers, strict=True):
        counted.result()
        assert answered == [str(number + 1) for number in range(len(answered))]
