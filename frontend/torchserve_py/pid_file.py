"""The pid file: which process is the server, told apart from a stranger that got its number later."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

_NAME = ".model_server.pid"


def default_path() -> Path:
    """Return where TorchServe keeps it: one server per temporary directory of the system."""
    return Path(tempfile.gettempdir()) / _NAME


class PidFile:
    """The file at ``path``, which holds a process id in decimal; the server is ``python … -m module``."""

    def __init__(self, path: Path, module: str) -> None:
        self.path = path
        self._module = module

    def server(self) -> psutil.Process | None:
        """Return the running server, or None when there is no file or its process is something else or gone."""
        process = self._process()
        return process if process is not None and self._is_server(process) else None

    def is_orphan(self) -> bool:
        """Whether there is a file whose process does not exist."""
        return self.path.exists() and self._process() is None

    def write(self, pid: int) -> None:
        """Put ``pid`` into the file, whole or not at all. Raises `OSError` when the file cannot be written."""
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
        """Delete the file if it still names ``pid``: another server may have taken it over."""
        if self._read() == pid:
            self.path.unlink(missing_ok=True)

    def _read(self) -> int | None:
        try:
            text = self.path.read_text().strip()
        except (FileNotFoundError, UnicodeDecodeError):
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

    def _is_server(self, process: psutil.Process) -> bool:
        import psutil

        try:
            return self._module in process.cmdline()
        except psutil.Error:
            return False
