"""How servers that share a file ask each other to let go of a sequence, and say which versions they serve.

Next to the database is a folder with a socket of each worker, named after its server. Whoever wants a sequence writes a
datagram to all sockets of the server that holds it. Nothing depends on these: a datagram that is lost costs a wait for
the end of a lease.
"""

import contextlib
import hashlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Final

from ts.jobs.sequence_steps import StoreReports
from ts.protocol.boot_clock import boot_time
from ts.sequences.sqlite.file_clock import note
from ts.sequences.sqlite.file_rows import name_of, text_of
from ts.sequences.sqlite.sqlite_file import SqliteFile
from ts.sequences.steps.stores.store import (
    LOOK_SECONDS,
    NO_REPORTS,
    SERVED_SECONDS,
    StoreError,
    StoreSettings,
    Watch,
)

#: The longest datagram in bytes: a model's name, a zero byte and a sequence's id.
_MOST: Final = 2**16


def _folder_of(path: str) -> str:
    return f"{path}-asks"


def _prefix_of(owner: str) -> str:
    return hashlib.blake2b(owner.encode(), digest_size=12).hexdigest() + "-"


@contextlib.contextmanager
def _short_path(folder: str) -> Iterator[str]:
    """Yield a path of a folder that is short enough for the address of a socket, on systems that have such."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{descriptor}"
        yield short if Path(short).is_dir() else folder
    finally:
        os.close(descriptor)


def ask(path: str, owner: str, model: str, sequence_ids: Sequence[str]) -> None:
    """Ask a server that uses the file to let go of sequences; never wait, never fail."""
    prefix = _prefix_of(owner)
    with contextlib.suppress(OSError), _short_path(_folder_of(path)) as folder:
        names = [each.name for each in Path(folder).iterdir() if each.name.startswith(prefix)]
        if not names:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for name in names:
                for sequence_id in sequence_ids:
                    _send(sender, f"{folder}/{name}", name_of(model) + b"\0" + name_of(sequence_id))


def _send(sender: socket.socket, address: str, message: bytes) -> None:
    try:
        sender.sendto(message, address)
    except ConnectionRefusedError:  # its worker was killed
        with contextlib.suppress(OSError):
            Path(address).unlink(missing_ok=True)
    except OSError:
        pass  # it is busy: it will not hear of this one


def _remove_dead(folder: str) -> None:
    """Remove the sockets of workers that were killed."""
    for each in Path(folder).iterdir():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(f"{folder}/{each.name}")
            except ConnectionRefusedError:
                each.unlink(missing_ok=True)
            except OSError:  # it has just been removed, or is something else
                continue


class FileWatch(Watch):
    """See `Watch`. Raises StoreError: the socket cannot be made.

    Args:
        file: A connection of its own to the file ``path``.
    """

    def __init__(
        self, settings: StoreSettings, path: str, file: SqliteFile, reports: StoreReports = NO_REPORTS
    ) -> None:
        self._settings = settings
        self._file = file
        self._reports = reports
        self._next_look = 0.0
        self._in_use = threading.Lock()
        self._is_closed = False
        self._address = ""
        folder = _folder_of(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            Path(folder).mkdir(mode=0o700, exist_ok=True)
            name = f"{_prefix_of(settings.owner)}{os.getpid()}-{secrets.token_hex(4)}"
            with _short_path(folder) as short:
                self._socket.bind(f"{short}/{name}")
                _remove_dead(short)
        except OSError as error:
            self._socket.close()
            self._file.close()
            raise StoreError(f"no socket can be made in {folder}: {error}") from error
        self._address = f"{folder}/{name}"
        self._prefix = name_of(settings.model) + b"\0"
        self._next = 0.0
        self._wake, self._waker = socket.socketpair()

    def wait(self) -> Sequence[str]:
        with self._in_use:
            if self._is_closed:
                return ()
            self._refresh()
            self._look()
            # Unlike `select.select` it takes descriptors of any number.
            readable = connection.wait([self._socket, self._wake], max(0.0, self._next - boot_time()))
            return self._heard() if self._socket in readable else ()

    def _refresh(self) -> None:
        """Say that this version is served, if that was said a third of the lease ago."""
        if (now := boot_time()) < self._next:
            return
        settings = self._settings
        with self._file.transaction():
            self._file.execute("DELETE FROM servers WHERE NOT alive_until >= ?", (now - 2 * SERVED_SECONDS,))
            self._file.execute(
                "INSERT OR REPLACE INTO servers (owner, pid, model, version, state_version, alive_until)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (
                    *(settings.owner, os.getpid(), name_of(settings.model)),
                    *(settings.version, settings.state_version, now + settings.lease),
                ),
            )
            note(self._file, now)
        self._next = now + settings.lease / 3

    def _look(self) -> None:
        """Report how large the file is and how many sequences it has, if that was reported a while ago."""
        if (now := boot_time()) < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        with self._file.reading():
            (sequences,) = self._file.execute("SELECT count(*) FROM sequences").fetchone()
        size = 0
        for suffix in ("", "-wal"):
            with contextlib.suppress(OSError):
                size += Path(f"{self._file.path}{suffix}").stat().st_size
        self._reports.size(size, sequences)

    def _heard(self) -> Sequence[str]:
        heard: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._socket.recv(_MOST)
                if message.startswith(self._prefix):
                    heard[text_of(message.removeprefix(self._prefix))] = None
        return list(heard)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._waker.send(b"x")
        with self._in_use:
            with contextlib.suppress(OSError):
                Path(self._address).unlink()
            for each in (self._socket, self._wake, self._waker):
                each.close()
            mine = (boot_time(), self._settings.owner, os.getpid(), name_of(self._settings.model))
            with contextlib.suppress(StoreError):  # the row is void soon in any case
                self._file.write("UPDATE servers SET alive_until = ? WHERE owner = ? AND pid = ? AND model = ?", mine)
            with contextlib.suppress(StoreError):
                self._file.close()
