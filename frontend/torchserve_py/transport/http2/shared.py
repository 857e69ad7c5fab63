"""What all connections of a server share: what is served, and the bounds of what they hold together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchserve_py.transport.http2.budget import Budget
from torchserve_py.transport.http2.decompression import Decompressor
from torchserve_py.transport.http2.methods import Limits, Method
from torchserve_py.transport.http2.unread import UnreadOfAll


class Shared(NamedTuple):
    """Methods by path (``/package.Service/Method``), limits, what clients have sent, what they have not fetched, and
    what decompresses.
    """

    methods: Mapping[str, Method]
    limits: Limits
    budget: Budget
    unread: UnreadOfAll
    decompressor: Decompressor
