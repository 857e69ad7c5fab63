"""The server's own path of a model's predictions: ``/NAME``, and TorchServe's where the server means something else."""

from typing import Final
from urllib.parse import quote

#: What the server answers requests with any method at, whatever models are called.
TAKEN: Final = frozenset({"health", "invocations", "live", "ping", "ready"})


def own_path(name: str) -> str:
    """Return where to send predictions for a model with a function or a handler."""
    quoted = quote(name, safe="")
    return f"/predictions/{quoted}" if name in TAKEN else f"/{quoted}"
