"""Valid names of models and versions: names appear in URLs, file names, log lines and metrics."""

from __future__ import annotations

from typing import Final

from torchserve_py.core.errors import InvalidModel

#: Bytes of a name or a version in UTF-8: file names, which may have 255 bytes, contain a name and more.
MAX_BYTES: Final = 200
#: Reserved in the paths of the Open Inference Protocol.
_STATISTICS: Final = "stats"
_SHOWN: Final = 60


def check_names(name: str, version: str) -> None:
    """Check that a name and a version are unambiguous in URLs, file names, log lines and metrics.

    Raises:
        InvalidModel: One of them is not; the message says why.
    """
    for what, text in (("name", name), ("version", version)):
        if not text.isprintable():
            shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
            raise InvalidModel(
                f"The model {what} {shown!r} cannot be part of a URL: it must not hold a control character."
            )
        if (size := len(text.encode())) > MAX_BYTES:
            raise InvalidModel(f"The model {what} {text[:_SHOWN]!r}… has {size} bytes, it may have {MAX_BYTES}.")
    if name in (".", ".."):
        raise InvalidModel(f"The model name {name!r} cannot be part of a URL: it means a folder there.")
    if "/" in name:
        raise InvalidModel(f"The model name {name!r} cannot be part of a URL: it must not hold a slash.")
    if name == _STATISTICS:
        raise InvalidModel(f"The model name {name!r} is taken: /v2/models/{name} has the statistics of all models.")
