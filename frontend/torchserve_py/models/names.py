"""What a model and its versions may be called: names stand in URLs, file names, log lines and metrics."""

from __future__ import annotations

from typing import Final

from torchserve_py.models.errors import InvalidModel

#: Bytes of a name or a version in UTF-8: a file name, which holds one of them and more, may have 255.
MAX_BYTES: Final = 200
#: What is no model's in the paths of the Open Inference Protocol.
_STATISTICS: Final = "stats"
_SHOWN: Final = 60


def check_names(name: str, version: str) -> None:
    """Let a name and a version pass that can be told apart wherever they stand.

    Raises:
        InvalidModel: One of them cannot; the message says why.
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
