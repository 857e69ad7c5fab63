"""The states of a fleet as files of a folder that its servers share.

A file appears whole, under a name that tells its number, and only if there is none of that number: a hard link is made
or refused in one step, over NFS, too.
"""

import contextlib
import os
import re
import secrets
import time
from itertools import islice
from pathlib import Path
from typing import Final

from torchserve_py.fleet.saved_models.fleet_state import MOST_BYTES, NOTHING, FleetState, FleetStateError, read_state
from ts.protocol.regular_files import read_regular_text

_NAME: Final = re.compile(r"state-([0-9]{12})\.json")
#: How many states stay in the folder, for people who look for what has changed.
_KEPT: Final = 20
#: The most names in the folder, which is read each second.
_MOST_NAMES: Final = 10_000
#: How often the newest state is looked for if it is gone before it is read, as after many changes.
_TRIES: Final = 10


class StateFolder:
    """States of a fleet in a folder, which the first state makes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.name = str(folder)

    def newest_number(self) -> int:
        return max(self._numbers(), default=0)

    def newest(self) -> FleetState:
        for _ in range(_TRIES):
            if not (number := self.newest_number()):
                return NOTHING
            path = self._path(number)
            try:
                return read_state(read_regular_text(path, MOST_BYTES, follow=False), number, str(path))
            except FileNotFoundError:
                continue  # there are many newer ones by now
            except OSError as error:
                raise FleetStateError(self._unreadable(path, error.strerror or str(error))) from error
            except ValueError as error:
                raise FleetStateError(self._unreadable(path, str(error))) from error
        raise FleetStateError(self._unreadable(self._folder, "its newest file is gone each time"))

    def add(self, state: FleetState) -> bool:
        path, text = self._path(state.number), state.text(time.time_ns() // 1_000_000)
        partial = self._folder / f".{path.name}.{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    partial.unlink()
        except OSError as error:
            raise FleetStateError(f"The state of the fleet cannot be written to {path}: {error}") from error
        self._tidy()
        return True

    def _tidy(self) -> None:
        """Remove the oldest states. What cannot be removed stays: the new state counts all the same."""
        with contextlib.suppress(OSError, FleetStateError):
            for number in sorted(self._numbers())[:-_KEPT]:
                self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"state-{number:012}.json"

    @staticmethod
    def _unreadable(path: Path, why: str) -> str:
        return f"The state of the fleet cannot be read from {path}: {why}."

    def _numbers(self) -> list[int]:
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in islice(entries, _MOST_NAMES + 1)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FleetStateError(self._unreadable(self._folder, error.strerror or str(error))) from error
        if len(names) > _MOST_NAMES:
            why = f"it has more than {_MOST_NAMES} files, and is for the states of a fleet only; remove the others"
            raise FleetStateError(self._unreadable(self._folder, why))
        return [int(found[1]) for name in names if (found := _NAME.fullmatch(name)) is not None]
