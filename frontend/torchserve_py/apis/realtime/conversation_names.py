"""The ids of conversations that are kept: those of OpenAI's Conversations (`apis.openai.responses_endpoints`)."""

from __future__ import annotations

import hashlib
import secrets
from typing import Final

from torchserve_py.core.jobs.job_observer import Account
from torchserve_py.core.serving.serving import ServedModel

PREFIX: Final = "conv_"
#: Hexadecimal digits of an id: of the model, of the client's key, and all.
_OF_MODEL, _OF_KEY, _ALL = 8, 8, 32


def new_id(model: ServedModel, account: Account | None) -> str:
    """Return the id of a new conversation with a model, of the client with this key."""
    begin = _begin(model, account)
    return f"{PREFIX}{begin}{secrets.token_hex((_ALL - len(begin)) // 2)}"


def is_own(conversation_id: str, model: ServedModel, account: Account | None) -> bool:
    """Return whether an id is that of a conversation with this model, of the client with this key."""
    digits = conversation_id.removeprefix(PREFIX)
    is_id = conversation_id.startswith(PREFIX) and len(digits) == _ALL and set(digits) <= set("0123456789abcdef")
    return is_id and digits.startswith(_begin(model, account))


def _begin(model: ServedModel, account: Account | None) -> str:
    return _hash(model.name)[:_OF_MODEL] + _hash("" if account is None else account.name)[:_OF_KEY]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
