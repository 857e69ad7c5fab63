"""Certificates that are renewed while the server runs: the files are read again when they change.

Connections that are open keep their certificate; handshakes from then on show the new one. Files that cannot be used,
such as a certificate whose key has not been written yet, change nothing, and are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from torchserve_py.features.tls.tls import Certificate, TlsError, read_certificate, read_files
from torchserve_py.features.tls.tls_settings import TlsSettings
from torchserve_py.metrics.families import Family
from torchserve_py.metrics.instruments import Gauge

if TYPE_CHECKING:
    from torchserve_py.doors.routing import DoorContext
    from torchserve_py.settings.table import Settings

logger = logging.getLogger(__name__)

#: How often the files are looked at (seconds).
_INTERVAL: Final = 1.0
_EXPIRY: Final = "Seconds until the certificate of the TLS listeners expires"
#: By what it is seen that a file has changed: its number, its time and its size.
_Stamp = tuple[int, int, int] | None
#: Reads the files that settings name.
Read: TypeAlias = Callable[["Settings"], Certificate]


class Renewal:
    """Follows the files of a certificate, which ``read`` reads, for each of the contexts."""

    def __init__(
        self, settings: Settings, contexts: Sequence[ssl.SSLContext], files: Sequence[Path | None], read: Read
    ) -> None:
        self._settings = settings
        self._contexts = contexts
        self._read = read
        self._files = [path for path in files if path is not None]
        self._stamps = [_look(path) for path in self._files]
        self._failed = ""
        #: When the certificate expires, in seconds since 1970.
        self.expires_at = self._load()

    @property
    def left(self) -> float:
        """How many seconds the certificate is still valid; below zero once it has expired."""
        return self.expires_at - time.time()

    def look(self) -> None:
        """Read the files again if they have changed. Blocks."""
        stamps = [_look(path) for path in self._files]
        if stamps == self._stamps and not self._failed:
            return
        try:
            self.expires_at = self._load()
        except OSError as error:
            if str(error) != self._failed:
                logger.error("The renewed certificate is not used: %s", error)
            self._failed = str(error)
            return
        self._stamps, self._failed = stamps, ""
        until = datetime.fromtimestamp(self.expires_at, UTC)
        logger.info("The certificate of the TLS listeners was read again; it expires at %s", until.isoformat())

    def _load(self) -> float:
        # What does not fit together would leave a context in use without its key.
        certificate = self._read(self._settings)
        certificate.load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        for context in self._contexts:
            certificate.load(context)
        return certificate.expires_at


def _look(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def expiry_family() -> Family[Gauge]:
    """Return the metric of the expiry."""
    return Family("ts_certificate_expiry_seconds", Gauge, "Seconds", _EXPIRY)


async def follow_certificate(context: DoorContext) -> None:
    """Follow the certificates of the listeners' TLS, until cancelled, and show when the first of them expires."""
    renewals = []
    for contexts, files, read in _followed(context):
        try:
            renewals.append(await asyncio.to_thread(Renewal, context.settings, contexts, files, read))
        except TlsError:  # the files have changed since the listeners were opened
            logger.exception("The certificate is not followed")
    if not renewals:
        return
    context.metrics.add(expiry_family()).child({}).read_from(lambda: min(each.left for each in renewals))
    context.on_reload += [each.look for each in renewals]
    while True:
        await asyncio.sleep(_INTERVAL)
        for each in renewals:
            await asyncio.to_thread(each.look)


def _followed(context: DoorContext) -> Iterator[tuple[Sequence[ssl.SSLContext], Sequence[Path | None], Read]]:
    """Yield the contexts of the listeners that show a certificate of files, with these files and what reads them."""
    own = context.settings.of(TlsSettings)
    pair = [own.certificate_file, own.private_key_file]
    of_files = list(context.pem_contexts)
    if own.keystore is None and own.certificate_file is not None:
        of_files += context.tls_contexts
    elif own.keystore is not None and context.tls_contexts:
        yield context.tls_contexts, [own.keystore], read_certificate
    if of_files:
        yield of_files, pair, read_files
