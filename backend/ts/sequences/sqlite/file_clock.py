"""The clock of the file store: `ts.protocol.boot_clock`, which starts again when the machine does.

The file says of which boot its moments are. After a reboot they are converted: no holder of a lease runs any more, and
every open sequence keeps the idle time that it had left when the file was in use last.
"""

from pathlib import Path
from typing import Any, Final

from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite.file_journal import fold
from ts.sequences.sqlite.file_tables import Tables
from ts.sequences.sqlite.sqlite_file import SqliteFile

#: `lease_until` of a lease whose holder ended without releasing it.
VOID: Final = -1.0


def boot_id() -> str:
    """Return the name of this boot of the machine; "" if the machine has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_clock(file: SqliteFile) -> None:
    """Make a new file's moments those of this boot."""
    now = boot_time()
    file.execute("DELETE FROM clock")
    file.execute("INSERT INTO clock (boot, noted, sweep_at) VALUES (?, ?, ?)", (boot_id(), now, now))


def note(file: SqliteFile, now: float) -> None:
    """Record that the file is in use now."""
    file.execute("UPDATE clock SET noted = ? WHERE NOT noted >= ?", (now, now))


def follow_boot(tables: Tables) -> None:
    """Convert the moments in the file if the machine was started since it was in use. Raises StoreError."""
    file = tables.file
    with file.reading():
        is_current = _is_current(_read(file))
    if is_current:
        return
    with file.transaction():
        if _is_current(clock := _read(file)):
            return  # another process has done it meanwhile
        fold(tables)
        passed = boot_time() - clock[1] if clock and type(clock[1]) is float else 0.0
        file.execute("UPDATE sequences SET expires_at = expires_at + ? WHERE typeof(expires_at) = 'real'", (passed,))
        file.execute(
            "UPDATE sequences SET lease_until = ? WHERE typeof(lease_until) = 'real' AND lease_until <> 0", (VOID,)
        )
        file.execute("DELETE FROM servers")
        start_clock(file)


def _read(file: SqliteFile) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = file.execute("SELECT boot, noted FROM clock").fetchone()
    return found


def _is_current(clock: tuple[Any, ...] | None) -> bool:
    """Whether the moments are those of this boot; a machine without a name for it is judged by its clock."""
    if clock is None or type(clock[0]) is not bytes or type(clock[1]) is not float:
        return False
    boot = boot_id()
    return clock[0] == boot.encode() and (bool(boot) or clock[1] <= boot_time())
