"""A server's own folder below the temporary directory, with the files of its models and the workers' socket.

A server that was killed cannot remove its folder, so the next one that starts there does. A folder is in use as long as
its server holds the lock on it, which the system releases with the process (and which keeps systemd-tmpfiles away).
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

_PREFIX: Final = "ts-server-"


@contextmanager
def server_folder(temp_dir: Path) -> Iterator[Path]:
    """Make a folder for this server, and remove it in the end; first remove those of servers that were killed.

    Raises OSError: the temporary directory cannot be used.
    """
    _remove_abandoned(temp_dir)
    folder, lock = _locked_folder(temp_dir)
    try:
        folder.chmod(0o711)  # workers may run as another user
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(temp_dir: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temp_dir))
        # A server that starts now may take it for abandoned, and remove it before it is locked.
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        flock(lock, LOCK_EX)
        if folder.exists():
            return folder, lock
        os.close(lock)


def _remove_abandoned(temp_dir: Path) -> None:
    for folder in temp_dir.glob(f"{_PREFIX}{'?' * 8}"):  # as mkdtemp makes names
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # it is another user's, or has just been removed
            continue
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            continue
        else:
            logger.info("Removing %s, which a killed server left behind", folder)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
