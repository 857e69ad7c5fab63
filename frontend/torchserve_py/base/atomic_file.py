"""Files that are replaced as a whole: readers never see half of one, and after a crash there is the old or the new."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, text: str, *, flushed: bool = True) -> None:
    """Write a file that only its owner can read: it may hold keys, passwords, or URLs with a token. Blocks.

    A file that is not ``flushed`` to the disk need not outlive the machine.

    Raises OSError: it cannot be written; ValueError: the text is none. The old file stays then.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if flushed:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except (OSError, ValueError):
        partial.unlink(missing_ok=True)
        raise
