"""How servers that share a file ask each other for sequences, and know which versions are served."""

import contextlib
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.sequences.sqlite.file_stores import lease_on, open_store, rows, run

from ts.jobs.sequence_steps import StoreReports
from ts.sequences.sqlite import file_acquisition
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.stores.store import Acquired, HeldElsewhere, OtherVersion, StoreError, Watch

DEADLINE = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


class Listener:
    """A thread that waits, as a worker's does."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.heard: list[str] = []
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self.ended.is_set():
            self.heard += self.watch.wait()

    def close(self) -> None:
        self.ended.set()
        self.watch.close()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


@pytest.fixture
def listen() -> Iterator[Callable[[FileStore], Listener]]:
    listeners: list[Listener] = []

    def start(store: FileStore) -> Listener:
        listeners.append(Listener(store.watch()))
        return listeners[-1]

    yield start
    for each in listeners:
        each.close()


def test_the_size_of_the_file_is_reported_once_a_minute(path: Path) -> None:
    told: list[tuple[int, int | None]] = []
    store = open_store(path, lease=0.03)
    run(store, "open", b"x" * 100_000)
    run(store, "over", b"1", closed="ended")
    watch = store.watch(StoreReports(size=lambda size, sequences: told.append((size, sequences))))
    for _ in range(3):
        watch.wait()
    watch.close()
    ((size, sequences),) = told
    assert (100_000 < size < 10_000_000, sequences) == (True, 2)


def held(store: FileStore, ids: Sequence[str]) -> None:
    assert store.acquire(ids) == [Acquired(None, None, HeldElsewhere())] * len(ids)


def test_the_holder_hears_what_is_wanted_in_all_of_its_workers(
    path: Path, listen: Callable[[FileStore], Listener]
) -> None:
    workers = [open_store(path, lease=600.0) for _ in range(2)]
    other_model = listen(open_store(path, model="another", lease=600.0))
    bystander = listen(open_store(path, owner="c/1/1", lease=600.0))
    listeners = [listen(each) for each in workers]
    names = ["s", "ä\0\ud800", "x" * 1_000]
    for name in names:
        run(workers[0], name, b"state")
    asking = open_store(path, owner="b/1/1")
    held(asking, names)
    for each in listeners:
        until(lambda each=each: len(each.heard) >= 3)  # type: ignore[misc]
        assert each.heard == names
    assert other_model.heard == bystander.heard == []


def test_it_works_in_a_folder_with_a_long_name(tmp_path: Path, listen: Callable[[FileStore], Listener]) -> None:
    path = tmp_path / ("x" * 150) / "s.db"
    store = open_store(path, lease=600.0)
    listener = listen(store)
    run(store, "s", b"state")
    held(open_store(path, owner="b/1/1"), ["s"])
    until(lambda: listener.heard == ["s"])


def test_a_worker_that_has_many_files_open_hears_what_is_wanted(
    path: Path, listen: Callable[[FileStore], Listener]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2_000)), hard))
    store = open_store(path, lease=600.0)
    run(store, "s", b"state")
    with contextlib.ExitStack() as open_files:
        while open_files.enter_context(Path(os.devnull).open()).fileno() <= 1_024:
            pass
        listener = listen(store)
    held(open_store(path, owner="b/1/1"), ["s"])
    until(lambda: listener.heard == ["s"])


def test_asking_never_waits_and_never_fails(path: Path) -> None:
    store, asking = open_store(path, lease=600.0), open_store(path, owner="b/1/1")
    run(store, "s", b"state")
    held(asking, ["s"])  # there is no folder yet
    watch = store.watch()  # nobody reads what it gets
    for _ in range(1_000):
        held(asking, ["s"])
    watch.close()
    (folder,) = (each for each in path.parent.iterdir() if each.is_dir())
    run(store, "y" * 500_000, b"state")
    watch = store.watch()
    held(asking, ["y" * 500_000])  # too long for a datagram
    watch.close()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("by", ["asking", "another worker"])
def test_the_socket_of_a_worker_that_was_killed_is_removed(
    path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    store, asking = open_store(path, lease=600.0), open_store(path, owner="b/1/1")
    run(store, "s", b"state")
    watch = store.watch()
    (address,) = (path.parent / f"{path.name}-asks").iterdir()
    left = address.with_name(f"{address.name}x")
    monkeypatch.chdir(left.parent)  # whose path is too long for the address of a socket
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(left.name)
    assert left.exists()
    if by == "asking":
        held(asking, ["s"])
    else:
        asking.watch().close()
    assert not left.exists()
    assert address.exists()
    watch.close()


def test_only_the_owner_may_ask(path: Path) -> None:
    watch = open_store(path).watch()
    folder = path.parent / f"{path.name}-asks"
    assert folder.stat().st_mode & 0o777 == 0o700
    watch.close()


def test_waiting_ends_by_itself_and_at_once_when_it_is_closed(path: Path) -> None:
    assert open_store(path, lease=0.03).watch().wait() == ()
    watch = open_store(path, lease=3_000.0).watch()
    threading.Timer(0.05, watch.close).start()
    assert watch.wait() == ()
    assert watch.wait() == ()
    watch.close()


def test_a_version_is_served_while_a_worker_says_so_and_a_while_longer(
    path: Path, listen: Callable[[FileStore], Listener], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = open_store(path, lease=0.3), open_store(path, owner="b/1/1", version="2.0")
    run(one, "s", b"state")

    def is_served() -> bool:
        refusal = two.acquire(["s"])[0].refusal
        assert isinstance(refusal, OtherVersion) and refusal.version == "1.0"
        return refusal.is_served

    listener = listen(one)
    until(lambda: bool(rows(path, "SELECT * FROM servers")))
    monkeypatch.setattr(file_acquisition, "SERVED_SECONDS", 0.0)
    time.sleep(0.5)  # it says so again and again
    until(is_served)
    listener.close()
    assert not is_served()
    monkeypatch.undo()
    assert is_served()  # its server may only be restarted


def test_a_file_that_vanished_is_told_to_the_thread_that_waits(path: Path) -> None:
    watch = open_store(path, lease=0.0).watch()
    watch.wait()
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(StoreError, match="deleted or replaced"):
        watch.wait()
    watch.close()


def test_a_lease_is_given_back_and_taken_at_once(path: Path, listen: Callable[[FileStore], Listener]) -> None:
    store, other = open_store(path, lease=600.0), open_store(path, owner="b/1/1")
    listener = listen(store)
    lease = run(store, "s", b"state")
    held(other, ["s"])
    until(lambda: listener.heard == ["s"])
    store.release([(lease, 1e12)])
    assert lease_on(other, "s").record.last == 1
