"""Certificates that are renewed while the server runs: the files are read again when they change.

Connections that are open keep their certificate; handshakes from then on show the new one. Files that cannot be used,
such as a certificate whose key has not been written yet, change nothing, and are looked at again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Gauge
from torchserve_py.ops.tls.tls import Certificate, read_certificate, read_files
from torchserve_py.ops.tls.tls_settings import TlsSettings

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings
    from torchserve_py.endpoints.routing import EndpointContext

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
        self._stamps: list[_Stamp] = []
        self._failed = ""
        #: When the certificate expires, in seconds since 1970; infinite until it has been read.
        self.expires_at = math.inf

    @property
    def left(self) -> float:
        """How many seconds the certificate is still valid; below zero once it has expired."""
        return self.expires_at - time.time()

    def look(self) -> Certificate | None:
        """Return the certificate if its files have changed and can be used, to be given to `use`. Blocks."""
        stamps = [_look(path) for path in self._files]
        if stamps == self._stamps and not self._failed:
            return None
        try:
            certificate = self._read(self._settings)
            # What does not fit together would leave a context in use without its key.
            certificate.load(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        except OSError as error:
            if str(error) != self._failed:
                logger.error("The renewed certificate is not used: %s", error)
            self._failed = str(error)
            return None
        self._stamps, self._failed = stamps, ""
        return certificate

    def use(self, certificate: Certificate) -> None:
        """Show this certificate from now on.

        The event loop calls this, so that no handshake comes between the certificate and its key.
        """
        for context in self._contexts:
            certificate.load(context)
        is_renewed, self.expires_at = self.expires_at != math.inf, certificate.expires_at
        if is_renewed:
            until = datetime.fromtimestamp(self.expires_at, UTC)
            logger.info("The certificate of the TLS listeners was read again; it expires at %s", until.isoformat())

    def reload(self, loop: asyncio.AbstractEventLoop) -> None:
        """Use the certificate if its files have changed. Blocks, so a thread calls this."""
        if (certificate := self.look()) is not None:
            loop.call_soon_threadsafe(self.use, certificate)


def _look(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def expiry_family() -> Family[Gauge]:
    """Return the metric of the expiry."""
    return Family("ts_certificate_expiry_seconds", Gauge, "Seconds", _EXPIRY)


async def follow_certificate(context: EndpointContext) -> None:
    """Follow the certificates of the listeners' TLS, until cancelled, and show when the first of them expires."""
    renewals = [Renewal(context.settings, contexts, files, read) for contexts, files, read in _followed(context)]
    if not renewals:
        return
    context.metrics.add(expiry_family()).child({}).read_from(lambda: min(each.left for each in renewals))
    loop = asyncio.get_running_loop()
    context.on_reload += [partial(each.reload, loop) for each in renewals]
    while True:
        for each in renewals:
            certificate = await asyncio.to_thread(each.look)
            if certificate is not None:
                each.use(certificate)
        await asyncio.sleep(_INTERVAL)


def _followed(context: EndpointContext) -> Iterator[tuple[Sequence[ssl.SSLContext], Sequence[Path | None], Read]]:
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
