"""Ids of responses and conversations: each says of which model it is, of which client's key, and its sequence.

An id is a prefix and hexadecimal digits: those of the model, of the key, and of the sequence with these; the id of a
response has further ones, since a sequence may have several responses.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any, Final

from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.serving.serving import ServedModel

RESPONSE: Final = "resp_"
CONVERSATION: Final = "conv_"
#: Digits of the model, of the key, of the sequence with these, and of what is in it.
_OF_MODEL, _OF_KEY, _OF_SEQUENCE, _OF_PART = 8, 8, 32, 16
_DIGITS: Final = frozenset("0123456789abcdef")


def new_sequence(model: ServedModel, account: Account | None, name: Sequence[str] = ()) -> str:
    """Return the sequence of something new, of the client with this key; with a name, the one of just that name."""
    begin = _of_model(model) + _of_key(account)
    rest = _OF_SEQUENCE - len(begin)
    return begin + (_hash(begin, *name)[:rest] if name else secrets.token_hex(rest // 2))


def new_response(sequence: str) -> str:
    """Return the id of a new response in a sequence."""
    return f"{RESPONSE}{sequence}{secrets.token_hex(_OF_PART // 2)}"


def sequence_of(identifier: Any, kind: str) -> str | None:
    """Return the sequence of an id of a kind, `RESPONSE` or `CONVERSATION`; None if it is no such id."""
    if not isinstance(identifier, str) or not identifier.startswith(kind):
        return None
    digits = identifier.removeprefix(kind)
    length = _OF_SEQUENCE + (_OF_PART if kind == RESPONSE else 0)
    return digits[:_OF_SEQUENCE] if len(digits) == length and _DIGITS.issuperset(digits) else None


def sequence_of_item(identifier: Any) -> str:
    """Return with what the id of an item begins: the sequence that has it, if it is an id."""
    return str(identifier).rpartition("_")[2][:_OF_SEQUENCE]


def is_of_model(sequence: str, model: ServedModel) -> bool:
    """Return whether a sequence is one of this model."""
    return sequence.startswith(_of_model(model))


def is_of_key(sequence: str, account: Account | None) -> bool:
    """Return whether a sequence is one of the client with this key."""
    return sequence.startswith(_of_key(account), _OF_MODEL)


def _of_model(model: ServedModel) -> str:
    return _hash(model.name)[:_OF_MODEL]


def _of_key(account: Account | None) -> str:
    return _hash("" if account is None else account.name)[:_OF_KEY]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
