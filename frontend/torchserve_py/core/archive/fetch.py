"""Downloading an archive into the model store, from the URLs that the operator allows and from no others.

`fetch` blocks: the caller runs it in a thread. A file of the model store is never replaced or half written:
the content goes to a hidden `.part` file, which takes its name when it is complete and has the right checksum. A
`.part` file that a killed server left behind is deleted by a later download.
"""

import atexit
import io
import logging
import os
import re
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path

from torchserve_py.core.archive.cancellation import check_cancelled
from torchserve_py.core.archive.downloads import DownloadPolicy, file_name, split_checksum
from torchserve_py.core.archive.errors import ArchiveExists, DownloadError
from torchserve_py.core.archive.http_source import opened, pieces
from torchserve_py.core.archive.locate import check_location
from torchserve_py.core.archive.progress_bar import Progress, progress_bar
from torchserve_py.core.archive.unpack import is_archive

logger = logging.getLogger(__name__)

#: What is downloaded.
_SCHEMES = ("http", "https", "file")
#: The size of an archive.
MAX_BYTES = 512 << 30
#: How long connecting may take, the head of an answer, and the pause between two pieces of its body (seconds).
IDLE_SECONDS = 30.0
#: How long a download may take from start to end (seconds).
TOTAL_SECONDS = 2 * 3600.0

#: How much of a local file is read at once (bytes).
_CHUNK = 1 << 20
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.part")
#: How long a `.part` file must lie untouched to be taken for a left-over (seconds): longer than a download may take.
_LEFT_OVER_AGE = TOTAL_SECONDS + 3600
#: The files being written: deleted when the process ends while a download hangs in its daemon thread.
_partials: set[Path] = set()


def fetch(url: str, model_store: Path | None, policy: DownloadPolicy) -> Path:
    """Download `url` (http, https or file) into the model store and return the new file, named as the URL's last part.

    Blocks, possibly for long. The policy must allow the URL, and every URL that it redirects to. `#sha256=…` behind the
    URL is what the content must have. Raises ArchiveNotFound (not allowed), ArchiveExists, DownloadError, Cancelled;
    then nothing is left behind.
    """
    try:
        scheme = urllib.parse.urlsplit(url).scheme.lower()
    except ValueError as error:
        raise DownloadError(url, f"it is no URL: {error}") from error
    if scheme not in _SCHEMES:
        raise DownloadError(url, f"{scheme} URLs are not downloaded; it must be one of {', '.join(_SCHEMES)}")
    store = check_location(url, model_store)
    try:
        bare, checksum = split_checksum(url)
    except ValueError as error:
        raise DownloadError(url, str(error)) from error
    policy.check_url(bare)
    partial = store / f".{uuid.uuid4().hex}.part"
    _partials.add(partial)
    try:
        _remove_left_overs(store)
        target = store / file_name(bare)
        if target.exists():
            if checksum:  # a caller may take it for an earlier download
                checksum.check(target, f"{target.name} in the model store")
            raise ArchiveExists(target)
        _receive(bare, partial, target.name, policy)
        if checksum:
            checksum.check(partial, "what came")
        _publish(partial, target)
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadError(url, str(error) or type(error).__name__) from error
    finally:
        partial.unlink(missing_ok=True)
        _partials.discard(partial)
    return target


def _receive(url: str, partial: Path, name: str, policy: DownloadPolicy) -> None:
    """Write the content at a URL to a file.

    Raises ValueError (an unusable URL; content over the limits or incomplete), OSError (also when it takes too long),
    and HTTPException where the answer is no HTTP.
    """
    ends = time.monotonic() + TOTAL_SECONDS
    try:
        with _opened(url, policy, ends) as (content, size):
            if size is not None and size > MAX_BYTES:
                raise ValueError(f"it has {size} bytes, more than the limit of {MAX_BYTES}")
            with progress_bar(size, name) as progress:
                received = _save(content, partial, progress, ends)
            if time.monotonic() >= ends:  # a connection that is cut off may look like one that has ended
                raise TimeoutError
            if not received:  # it may have ended within the headers
                raise ValueError("nothing came")
            if size is not None and received != size:  # a local file that shrinks meanwhile
                raise ValueError(f"it ended after {received} of {size} bytes")
    except (OSError, HTTPException, ValueError) as error:
        if time.monotonic() >= ends:
            raise TimeoutError(f"it took longer than the limit of {TOTAL_SECONDS:g} s") from error
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"it timed out: no (further) answer for {IDLE_SECONDS:g} s") from error
        raise


@contextmanager
def _opened(url: str, policy: DownloadPolicy, ends: float) -> Iterator[tuple[Iterator[bytes], int | None]]:
    """The content at `url` and its size in bytes where that is known."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() == "file":
        with _open_file(parts) as file:
            yield _pieces(file), os.fstat(file.fileno()).st_size
        return
    with opened(url, policy, IDLE_SECONDS, ends) as answer:
        yield pieces(answer), answer.length


def _pieces(file: io.BufferedReader) -> Iterator[bytes]:
    while piece := file.read(_CHUNK):
        yield piece


def _open_file(parts: urllib.parse.SplitResult) -> io.BufferedReader:
    if parts.netloc.lower() not in ("", "localhost"):
        raise ValueError(f'a file URL must name a file of this machine, as in file:///path, not of "{parts.netloc}"')
    path = Path(urllib.request.url2pathname(parts.path))
    try:
        if path.is_file():
            file = path.open("rb")
            if is_archive(file):
                return file
            file.close()
    except OSError as error:
        logger.debug("%s: %s", path, error)
    # Whether another file is there, clients are not told.
    raise FileNotFoundError(f"there is no archive {path} that the server can read")


def _save(content: Iterator[bytes], partial: Path, progress: Progress, ends: float) -> int:
    """Write the content to a file and return how many bytes it has.

    Raises ValueError when it is over the limit or incomplete, TimeoutError at the time ``ends``.
    """
    received = 0
    with partial.open("xb") as file:
        try:
            for chunk in content:
                check_cancelled()
                if time.monotonic() >= ends:
                    raise TimeoutError
                received += len(chunk)
                if received > MAX_BYTES:
                    raise ValueError(f"it has more than the limit of {MAX_BYTES} bytes")
                file.write(chunk)
                progress(len(chunk))
        except IncompleteRead as error:
            received += len(error.partial)
            raise ValueError(f"the connection ended early, after {received} bytes") from error
    return received


def _publish(partial: Path, target: Path) -> None:
    """Give the finished file its name, unless a file has taken that name meanwhile."""
    try:
        os.link(partial, target)
    except FileExistsError as error:
        raise ArchiveExists(target) from error
    except OSError:  # a file system without hard links
        if target.exists():
            raise ArchiveExists(target) from None
        partial.rename(target)


def _remove_left_overs(store: Path) -> None:
    """Delete the `.part` files that earlier downloads left behind."""
    for entry in store.iterdir():
        try:
            if _PARTIAL.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > _LEFT_OVER_AGE:
                entry.unlink()
                logger.info("Removed %s, which an earlier download left behind", entry)
        except OSError as error:  # another server was quicker, or the permission is missing
            logger.debug("%s is not removed: %s", entry, error)


@atexit.register
def _remove_partials() -> None:
    for partial in list(_partials):
        partial.unlink(missing_ok=True)
