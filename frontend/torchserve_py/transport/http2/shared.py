"""What all connections of a server share: what is served, and the bounds of what they hold together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchserve_py.transport.decompression import Decompressor
from torchserve_py.transport.http2.methods import Limits, Method
from torchserve_py.transport.http2.unread import UnreadOfAll
from torchserve_py.transport.request_budget import RequestBudget


class Shared(NamedTuple):
    """Methods by path (``/package.Service/Method``), limits, what clients have sent, what they have not fetched, and
    what decompresses.
    """

    methods: Mapping[str, Method]
    limits: Limits
    budget: RequestBudget
    unread: UnreadOfAll
    decompressor: Decompressor
