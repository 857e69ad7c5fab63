"""Which requests without a sequence stay with one version: those that have the same text here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from torchserve_py.core.jobs.call import USER_HEADER, Call


def user_of(call: Call) -> str | None:
    """Return the user that a request names in its header."""
    return call.header(USER_HEADER) or None


def key_of(call: Call) -> str | None:
    """Return what tells the key of a request from others."""
    return None if call.account is None else call.account.client


def client_of(call: Call) -> str | None:
    """Return the key of a request, or else the address it comes from, as turns between clients have it."""
    return (call.account or call).client or None


#: By the value of `sticky_traffic`.
STICKY_BY: Final[Mapping[str, Callable[[Call], str | None]]] = {
    "user": user_of,
    "key": key_of,
    "client": client_of,
}
