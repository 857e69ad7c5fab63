"""Which requests without a sequence stay with one version: those that have the same text here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torchserve_py.jobs.inference_request import USER_HEADER, InferenceRequest
from ts.protocol.request_names import header_among


def user_of(request: InferenceRequest) -> str | None:
    """Return the user that a request names in its header."""
    return header_among(request.headers, USER_HEADER) or None


def key_of(request: InferenceRequest) -> str | None:
    """Return what tells the key of a request from others."""
    return None if request.account is None else request.account.client


def client_of(request: InferenceRequest) -> str | None:
    """Return the key of a request, or else the address it comes from, as turns between clients have it."""
    return (request.account or request).client or None


#: By the value of `sticky_traffic`.
STICKY_BY: Final[Mapping[str, Callable[[InferenceRequest], str | None]]] = {
    "user": user_of,
    "key": key_of,
    "client": client_of,
}
