"""A call that a model makes of another one while it runs a request: what it asks, and what comes of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple, TypeAlias

from torchserve_py.core.jobs.call import Call


class ModelCall(NamedTuple):
    """What a model asks: the name of a function in its own file, and a request as a client would send it."""

    function: str
    content_type: str
    accept: str
    body: bytes | bytearray


class CallOutcome(NamedTuple):
    """What came of it: the status and the answer or a part of it, or an error. The fields are those of `CALLED`."""

    status: int
    content_type: str
    body: bytes | bytearray
    error: str | None = None
    more: bool = False


#: Runs a call for the request in which a model makes it, and yields its outcome part by part; closing that ends it.
CallModel: TypeAlias = Callable[[Call, ModelCall], AsyncGenerator[CallOutcome]]
