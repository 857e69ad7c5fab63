"""The states of a fleet as files of a folder that its servers share.

A file appears whole, under a name that tells its number, and only if there is none of that number: a hard link is made
or refused in one step, over NFS, too.
"""

import os
import re
import secrets
import time
from pathlib import Path
from typing import Final

from torchserve_py.features.fleet.fleet_state import NOTHING, FleetState, FleetStateError, read_state

_NAME: Final = re.compile(r"state-(\d{12})\.json")
#: How many states stay in the folder, for people who look for what has changed.
_KEPT: Final = 20


class StateFolder:
    """States of a fleet in a folder, which the first state makes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def newest_number(self) -> int:
        return max(self._numbers(), default=0)

    def newest(self) -> FleetState:
        while number := self.newest_number():
            path = self._path(number)
            try:
                return read_state(path.read_text(encoding="utf-8"), number, str(path))
            except FileNotFoundError:
                continue  # there are many newer ones by now
            except (OSError, UnicodeDecodeError) as error:
                raise FleetStateError(f"The state of the fleet cannot be read from {path}: {error}") from error
        return NOTHING

    def add(self, state: FleetState) -> bool:
        path = self._path(state.number)
        partial = self._folder / f".{path.name}.{secrets.token_hex(8)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(state.text(time.time_ns() // 1_000_000))
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(partial, path)
            except FileExistsError:
                return False
            finally:
                partial.unlink()
            for number in sorted(self._numbers())[:-_KEPT]:
                self._path(number).unlink(missing_ok=True)
        except OSError as error:
            raise FleetStateError(f"The state of the fleet cannot be written to {path}: {error}") from error
        return True

    def _path(self, number: int) -> Path:
        return self._folder / f"state-{number:012}.json"

    def _numbers(self) -> list[int]:
        try:
            names = [each.name for each in self._folder.iterdir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FleetStateError(f"The state of the fleet cannot be read from {self._folder}: {error}") from error
        return [int(found[1]) for name in names if (found := _NAME.fullmatch(name)) is not None]
