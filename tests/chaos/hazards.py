"""What a worker does not survive: a commit around which it dies or hangs, and a disk without room."""

import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.sqlite.file_store import FileStore

#: How long a commit hangs: until the response timeout is over or another server may have taken the sequences over.
HANG_SECONDS = 4.0
#: What a commit takes longer (seconds, at most), so that workers die while it is under way and the next batch runs.
SLOWNESS = 0.03
#: While this file exists, this process writes to no file beyond its first bytes, as if the disk were full.
DISK_FULL = Path(os.environ["CHAOS_DIRECTORY"]) / "disk-full"
LOOK_INTERVAL = 0.05
#: Gets a line for each death.
EVENTS = Path(os.environ["CHAOS_DIRECTORY"]) / "events"


def live_dangerously(*, deaths: float, hangs: float) -> None:
    """Let this process die around some commits, where a step would be lost or applied twice, and have a full disk.

    Args:
        deaths, hangs: The parts of the commits that kill or stop the process, and that hang.
    """
    for store in (FileStore, RedisStore):
        store.commit = dangerous(store.commit, deaths, hangs)  # type: ignore[method-assign]
    threading.Thread(target=keep_disk_full, daemon=True).start()


def keep_disk_full() -> None:
    """Let the disk be full while it is to be, whether the handler is called meanwhile or not."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    while True:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 if DISK_FULL.exists() else most, most))
        time.sleep(LOOK_INTERVAL)


def dangerous(commit: Callable[..., Any], deaths: float, hangs: float) -> Callable[..., Any]:
    """Return a commit that the process does not always survive: killed or stopped just before it, or just after."""

    def wrapped(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            note("commit while the next batch runs")
        time.sleep(SLOWNESS * random.random())
        if random.random() < hangs:
            note("worker hung before a commit")
            time.sleep(HANG_SECONDS)
        dies = random.random() < deaths
        if dies and random.random() < 0.3:
            die("before")
        result = commit(*arguments)
        if dies:
            die("after")
        return result

    return wrapped


def die(when: str) -> None:
    how = random.choice([signal.SIGKILL, signal.SIGSTOP])
    note(f"worker {'killed' if how is signal.SIGKILL else 'stopped'} {when} a commit")
    os.kill(os.getpid(), how)


def note(event: str) -> None:
    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1:
        with EVENTS.open("a") as events:
            events.write(f"{event}\n")
