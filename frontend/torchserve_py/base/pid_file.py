"""The pid file: it names the server's process, and detects when another process has reused the process id."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ts.protocol.regular_files import read_regular_text

if TYPE_CHECKING:
    import psutil

_NAME = ".model_server.pid"
#: How long another command may hold the lock (seconds); it needs it for as long as starting a process takes.
_LOCK_LIMIT = 10.0
_MOST_BYTES = 100


def default_path() -> Path:
    """Return the path that TorchServe uses: one server per temporary directory of the system."""
    return Path(tempfile.gettempdir()) / _NAME


class PidFile:
    """The file at ``path``, which holds a process id in decimal; the server is ``python … -m module``."""

    def __init__(self, path: Path, module: str) -> None:
        self.path = path
        self._module = module

    def server(self) -> psutil.Process | None:
        """Return the running server; None if there is no file, or its process has ended or is not the server."""
        process = self._process()
        if process is None:
            return None
        import psutil

        try:
            return process if self._module in process.cmdline() else None
        except psutil.Error:
            return None

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the file against other commands.

        Raises OSError: the lock, a file beside it, cannot be made, or another process holds it for too long.
        """
        path = self.path.with_name(f"{self.path.name}.lock")
        deadline = time.monotonic() + _LOCK_LIMIT
        while (descriptor := _lock(path)) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(errno.ETIMEDOUT, f"another start or stop holds {path}")
            time.sleep(0.01)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # before releasing the lock; afterwards the file may be another command's lock
            os.close(descriptor)

    def remove_orphan(self) -> bool:
        """Delete the file if its process does not exist; return whether that was so."""
        if not self._is_orphan():
            return False
        with self.lock():
            is_orphan = self._is_orphan()  # still, not the file of a start that came between
            if is_orphan:
                self.path.unlink(missing_ok=True)
        return is_orphan

    def _is_orphan(self) -> bool:
        return self.path.exists() and self._process() is None

    def write(self, pid: int) -> None:
        """Put ``pid`` into the file, whole or not at all; call it with the lock held.

        Raises OSError: the file cannot be written.
        """
        descriptor, temporary = tempfile.mkstemp(prefix=_NAME, dir=self.path.parent)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(str(pid))
                os.fchmod(file.fileno(), 0o644)
            Path(temporary).replace(self.path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise

    def remove(self, pid: int) -> None:
        """Delete the file if it still names ``pid``: another server may have taken it over.

        Raises OSError: the file cannot be deleted or locked.
        """
        if self._read() != pid:
            return
        with self.lock():
            if self._read() == pid:
                self.path.unlink(missing_ok=True)

    def _read(self) -> int | None:
        try:
            text = read_regular_text(self.path, _MOST_BYTES).strip()
        except (FileNotFoundError, ValueError):
            return None
        return int(text) if text.isascii() and text.isdigit() else None

    def _process(self) -> psutil.Process | None:
        pid = self._read()
        if pid is None:
            return None
        import psutil  # 20 ms that a first start need not pay

        try:
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except (psutil.NoSuchProcess, OverflowError):
            return None


def _lock(path: Path) -> int | None:
    """Create and lock ``path``, and return its descriptor; None if another process holds or has just removed it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)  # anybody may write there
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
