"""Downloading an archive into the model store, from the URLs that the operator allows and from no others.

Plain synchronous code: the caller runs it in a thread. A file of the model store is never replaced or half written:
the content goes to a hidden `.part` file, which takes its name when it is complete and has the right checksum. A
`.part` file that a killed server left behind is deleted by a later download.
"""

from __future__ import annotations

import atexit
import http.client
import io
import logging
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchserve_py.archive.cancellation import Cancellation
from torchserve_py.archive.checksum import split_checksum
from torchserve_py.archive.connections import HttpHandler, HttpsHandler
from torchserve_py.archive.errors import ArchiveExists, ArchiveNotFound, DownloadError
from torchserve_py.archive.limits import GIB
from torchserve_py.archive.locate import check_location
from torchserve_py.archive.networks import Network
from torchserve_py.archive.progress import Progress, progress_bar

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_PARTIAL = re.compile(r"\.[0-9a-f]{32}\.part")
#: How much longer than a download may take a `.part` file must lie untouched to be taken for a left-over (seconds).
_LEFT_OVER_MARGIN = 3600

#: The files being written: deleted when the process ends while a download hangs in a thread that nobody waits for.
_partials: set[Path] = set()


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How large a download may be and how long it may take.

    max_bytes     the archive's size
    idle_seconds  to connect, and between two pieces of data
    total_seconds from start to end
    """

    max_bytes: int = 512 * GIB
    idle_seconds: float = 30
    total_seconds: float = 2 * 3600


DEFAULT_FETCH_LIMITS = FetchLimits()


def fetch(
    url: str,
    model_store: Path | None,
    *,
    allowed_urls: Sequence[re.Pattern[str]] = (),
    allowed_networks: Sequence[Network] = (),
    limits: FetchLimits = DEFAULT_FETCH_LIMITS,
    cancellation: Cancellation | None = None,
) -> Path:
    """Download `url` (http, https or file) into the model store and return the new file, named as the URL's last part.

    A URL is used only when one of `allowed_urls` (compiled to ignore case) matches the whole of it, but for a checksum,
    and so is every URL that it redirects to. Without patterns nothing is downloaded. Beyond the public internet only
    addresses in `allowed_networks` are connected to. `#sha256=…` behind the URL is what the content must have.
    Raises ArchiveNotFound (not allowed), ArchiveExists, DownloadError, Cancelled; then nothing is left behind.
    """
    store = check_location(url, model_store)
    try:
        bare, checksum = split_checksum(url)
    except ValueError as error:
        raise DownloadError(url, str(error)) from error
    _check_allowed(bare, allowed_urls)
    partial = store / f".{uuid.uuid4().hex}.part"
    _partials.add(partial)
    cancellation = cancellation or Cancellation()
    try:
        _remove_left_overs(store, limits.total_seconds + _LEFT_OVER_MARGIN)
        target = store / file_name(bare)
        if target.exists():
            if checksum:  # a caller may take it for an earlier download
                checksum.check(target, f"{target.name} in the model store")
            raise ArchiveExists(target)
        with (
            _opened(bare, allowed_urls, allowed_networks, limits) as (content, size),
            progress_bar(size, target.name) as progress,
        ):
            if size is not None and size > limits.max_bytes:
                raise ValueError(f"it has {size} bytes, more than the limit of {limits.max_bytes}")
            received = _save(content, partial, progress, limits, cancellation)
        if size is not None and received != size:
            raise ValueError(f"the connection ended after {received} of {size} bytes")
        if checksum:
            checksum.check(partial, "what came")
        _publish(partial, target)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadError(url, _reason(error)) from error
    finally:
        partial.unlink(missing_ok=True)
        _partials.discard(partial)
    return target


def file_name(url: str) -> str:
    """The file in the model store that `url` is downloaded to. Raises ValueError where the URL names none."""
    name = urllib.parse.urlsplit(url).path.rsplit("/", 1)[-1]
    if not name or name.startswith(".") or "\\" in name:
        raise ValueError("the URL does not end in a file name")
    return name


def _check_allowed(url: str, allowed_urls: Sequence[re.Pattern[str]]) -> None:
    if any(pattern.fullmatch(url) for pattern in allowed_urls):
        return
    example = "allowed_urls=https://models[.]example[.]com/.*"
    detail = f"allow it in config.properties with a pattern for the whole URL, such as {example}"
    raise ArchiveNotFound(f"Given URL {url} does not match any allowed URL(s)", detail)


@contextmanager
def _opened(
    url: str, allowed_urls: Sequence[re.Pattern[str]], allowed_networks: Sequence[Network], limits: FetchLimits
) -> Iterator[tuple[io.BufferedIOBase, int | None]]:
    """The content at `url` and its size in bytes where that is known."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() == "file":
        with _open_file(parts) as file:
            yield file, os.fstat(file.fileno()).st_size
        return
    _check_no_credentials(parts)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        HttpHandler(allowed_networks),
        HttpsHandler(allowed_networks),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _AllowedRedirects(allowed_urls),
    ):
        opener.add_handler(handler)
    with opener.open(url, timeout=limits.idle_seconds) as response:
        length = response.headers.get("content-length")
        yield response, int(length) if length else None


def _check_no_credentials(parts: urllib.parse.SplitResult) -> None:
    """They would stand in logs and descriptions; and `https://allowed.example@other.example/` misleads patterns."""
    if "@" in parts.netloc:
        raise ValueError("a URL must not hold a user name or a password")


def _open_file(parts: urllib.parse.SplitResult) -> io.BufferedReader:
    if parts.netloc.lower() not in ("", "localhost"):
        raise ValueError(f'a file URL must name a file of this machine, as in file:///path, not of "{parts.netloc}"')
    path = Path(urllib.request.url2pathname(parts.path))
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    return path.open("rb")


class _AllowedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to a URL that is allowed itself."""

    def __init__(self, allowed_urls: Sequence[re.Pattern[str]]) -> None:
        self._allowed_urls = allowed_urls

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        try:
            if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
                raise ValueError(f"it redirects to {newurl}, which is neither http nor https")
            _check_allowed(newurl, self._allowed_urls)
            _check_no_credentials(urllib.parse.urlsplit(newurl))
        except BaseException:
            fp.close()
            raise
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _save(
    content: io.BufferedIOBase, partial: Path, progress: Progress, limits: FetchLimits, cancellation: Cancellation
) -> int:
    """Write the content to a file and return how many bytes it has. Raises ValueError when it is over the limits."""
    deadline = time.monotonic() + limits.total_seconds
    received = 0
    with partial.open("xb") as file:
        while chunk := content.read1(_CHUNK_BYTES):
            cancellation.check()
            received += len(chunk)
            if received > limits.max_bytes:
                raise ValueError(f"it has more than the limit of {limits.max_bytes} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"it took longer than the limit of {limits.total_seconds:g} s")
            file.write(chunk)
            progress.update(len(chunk))
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


def _remove_left_overs(store: Path, age: float) -> None:
    """Delete the `.part` files that nobody has written to for `age` seconds."""
    for entry in store.iterdir():
        try:
            if _PARTIAL.fullmatch(entry.name) and time.time() - entry.stat().st_mtime > age:
                entry.unlink()
                logger.info("Removed %s, which an earlier download left behind", entry)
        except OSError as error:  # another server was quicker, or may and we may not
            logger.debug("%s is not removed: %s", entry, error)


@atexit.register
def _remove_partials() -> None:
    for partial in list(_partials):
        partial.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        with error:
            return f"the server answered {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return str(error.reason)
    return str(error) or type(error).__name__
