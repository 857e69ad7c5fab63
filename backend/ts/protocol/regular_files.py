"""Regular files that others may have written: opening one never waits, and what is read of it is bounded.

A folder that several servers, models or people write to may hold anything under the name of a file: a FIFO, whose
opening waits for a writer, a device, a link to somewhere else, or far more bytes than fit into memory.
"""

import errno
import os
import stat
from typing import Final

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_CHUNK: Final = 1 << 20


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """Return a descriptor by which the regular file at a path is read; without ``follow`` a link is none.

    Raises OSError: the file cannot be opened, or is none; then ``strerror`` says what is there instead.
    """
    check_regular(path, follow=follow)  # opening a device may do something
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    try:
        _check_status(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: str | os.PathLike[str], *, follow: bool = True) -> None:
    """Check without opening it that a path leads to a regular file. Raises OSError as `open_regular`."""
    status = os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - pathlib would cost every worker its import
    _check_status(status, path)


def _check_status(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = next((words for is_kind, words in _KINDS if is_kind(status.st_mode)), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", os.fspath(path))


def read_regular(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> bytes:
    """Return the content of a regular file; without ``follow`` a link is none.

    Raises ValueError: it has more than ``limit`` bytes; OSError: as `open_regular`, or it cannot be read.
    """
    descriptor = open_regular(path, follow=follow)
    try:
        left, chunks = limit + 1, []
        if os.fstat(descriptor).st_size <= limit:  # it may grow, and files of the system have no size
            while left > 0 and (chunk := os.read(descriptor, min(left, _CHUNK))):
                chunks.append(chunk)
                left -= len(chunk)
            if left > 0:
                return b"".join(chunks)
    finally:
        os.close(descriptor)
    raise ValueError(f"the file is larger than {limit} bytes, the most that is read")


def read_regular_text(path: str | os.PathLike[str], limit: int, *, follow: bool = True) -> str:
    """Return the text in a regular file; a byte order mark is not part of it.

    Raises ValueError: it is no UTF-8; otherwise as `read_regular`.
    """
    return utf8_text(read_regular(path, limit, follow=follow))


def utf8_text(content: bytes) -> str:
    """Return the text that these bytes are in UTF-8, without a byte order mark. Raises ValueError: they are none."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if content.startswith(_UTF16):
            raise ValueError("the text is in UTF-16; save it in UTF-8") from None
        line = content.count(b"\n", 0, error.start) + 1
        what = f"the byte 0x{content[error.start]:02x} in line {line}"
        raise ValueError(f"the text is not in UTF-8: {what}; save it in UTF-8") from None
