"""Between the headers of a response and the metadata of a call."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Final

logger = logging.getLogger(__name__)

_KEY: Final = re.compile(r"[0-9a-z_.-]+")
_VALUE: Final = re.compile(r"[\x20-\x7e]*")
#: What speaks of an HTTP message, or is gRPC's own.
_NOT_METADATA: Final = frozenset(
    (
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
_RESERVED: Final = "grpc-"
_BINARY: Final = "-bin"


def metadata_of(headers: Iterable[Sequence[str]]) -> tuple[tuple[str, str | bytes], ...]:
    """The metadata for the headers that a model has set, with keys in lower case.

    Those that speak of an HTTP message are left out, and so, with a line in the log, is what metadata cannot hold.
    """
    pairs: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        key = name.lower()
        if key in _NOT_METADATA:
            continue
        if not _KEY.fullmatch(key) or key.startswith(_RESERVED) or not _VALUE.fullmatch(value):
            logger.warning("The header %r: %r of a response is not sent: gRPC's metadata cannot hold it", name, value)
        else:
            pairs.append((key, value.encode() if key.endswith(_BINARY) else value))
    return tuple(pairs)
