"""Where the snapshots of a server lie: files of its settings, the newest of which it reads when it starts again."""

import os
import re
from pathlib import Path
from typing import Final

#: The folder of the snapshots, below the directory of the logs.
SNAPSHOT_FOLDER: Final = "config"
_FILE_NAME: Final = re.compile(r"\d{17}-(?:startup|snapshot|shutdown)\.cfg")


def newest_snapshot(log_location: Path) -> Path | None:
    """Return the snapshot that was written last, or None."""
    try:
        found = oldest_first(log_location / SNAPSHOT_FOLDER)
    except OSError:  # no such folder, or it is not readable: there is nothing to restore
        return None
    return found[-1] if found else None


def oldest_first(folder: Path) -> list[Path]:
    """Return the snapshots in a folder, oldest first; only regular files are any. Raises OSError."""
    with os.scandir(folder) as entries:
        found = [each for each in entries if _FILE_NAME.fullmatch(each.name) and each.is_file(follow_symlinks=False)]
        found.sort(key=lambda each: (each.stat(follow_symlinks=False).st_mtime_ns, each.name))
    return [Path(each.path) for each in found]
