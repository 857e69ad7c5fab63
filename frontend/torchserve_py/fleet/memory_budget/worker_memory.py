"""What worker processes take of the machine's memory, and what the most was: read from the kernel, not declared.

On Linux memory is measured as PSS, in which a page that several processes share counts in parts: workers that are
forked from one parent share the pages of their libraries. The kernel itself keeps the peak of each process, so a peak
between two looks is not missed. Elsewhere, and of processes of another user, it is the resident size (RSS).
"""

import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

#: What sets the peak of a process back to its present size, see proc_pid_clear_refs(5).
_RESET_PEAK: Final = "5"
_KIBIBYTE: Final = 1024


class WorkerMemory(NamedTuple):
    """Bytes of a worker with all processes that it has started: now, and at most since the peak was reset."""

    now: int
    peak: int


def measure(workers: Mapping[int, Collection[int]]) -> Mapping[int, WorkerMemory]:
    """Return the memory of workers; those that are gone are left out.

    Takes some milliseconds for each gigabyte: call it off the event loop.

    Args:
        workers: The ids of the processes of each, more than one if it has several ranks, by the one that names it.
    """
    measured = {name: [_memory_of(each) for each in with_children(*pids)] for name, pids in workers.items()}
    return {
        pid: WorkerMemory(sum(each.now for each in found), sum(each.peak for each in found))
        for pid, found in measured.items()
        if any(each.now for each in found)
    }


def reset_peak(pids: Collection[int]) -> None:
    """Forget the peak of a worker so far; where that is not allowed the peak stays."""
    for each in with_children(*pids) if sys.platform == "linux" else ():
        try:
            Path(f"/proc/{each}/clear_refs").write_text(_RESET_PEAK)
        except OSError:  # it has ended, or is another user's
            continue


def with_children(*pids: int) -> Collection[int]:
    """Return ids of processes, those of the processes that these have started, and so on."""
    return {each for pid in pids for each in _with_children(pid)}


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    if sys.platform != "linux":
        import psutil

        try:
            yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.Error:
            return
        return
    for task in _tasks(pid):
        try:
            children = (task / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield from _with_children(int(child))


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _memory_of(pid: int) -> WorkerMemory:
    if sys.platform != "linux":
        import psutil

        try:
            resident = psutil.Process(pid).memory_info().rss
        except psutil.Error:
            return WorkerMemory(0, 0)
        return WorkerMemory(resident, resident)
    status = _kilobytes(Path(f"/proc/{pid}/status"))
    resident = status.get("VmRSS", 0)
    shares = _kilobytes(Path(f"/proc/{pid}/smaps_rollup"))
    now = shares.get("Pss", resident)
    grown = max(0, status.get("VmHWM", 0) - resident)  # pages of its own that it has given back
    return WorkerMemory(now, now + grown)


def _kilobytes(file: Path) -> dict[str, int]:
    """Return the bytes that a file of /proc gives in kilobytes, by name; nothing if it cannot be read."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if line.endswith(" kB")]
    return {each[0].rstrip(":"): int(each[1]) * _KIBIBYTE for each in words if len(each) == 3}
