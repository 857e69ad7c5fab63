"""A terminal for commands that look whether they have one; what they write to it goes to a file."""

import os
import pty
import termios
from pathlib import Path
from threading import Thread

_ROWS_AND_COLUMNS = (50, 200)


class Terminal:
    """A pseudo-terminal. Close ``end``, the output of commands, once they have it: it is gone when they are."""

    def __init__(self, output: Path) -> None:
        self._own, self.end = pty.openpty()
        termios.tcsetwinsize(self.end, _ROWS_AND_COLUMNS)
        Thread(target=self._copy, args=(output,), daemon=True).start()

    def _copy(self, output: Path) -> None:
        with output.open("wb", buffering=0) as file:
            try:
                while part := os.read(self._own, 65536):
                    file.write(part)
            except OSError:  # nobody has it any more
                pass
            finally:
                os.close(self._own)
