"""When a process was started, which tells it apart from a later one with the same id."""

from pathlib import Path


def started(pid: int) -> str | None:
    """Return when a process was started (clock ticks since the machine was); None if it has ended or cannot be seen."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return None if state in "ZX" else fields[18]
