"""State that all connections of a gRPC server share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchserve_py.transport.decompression import Decompressor
from torchserve_py.transport.http2.methods import Limits, Method
from torchserve_py.transport.http2.unread import UnreadOfAll
from torchserve_py.transport.request_budget import RequestBudget


class Shared(NamedTuple):
    """Methods by path (``/package.Service/Method``), limits, budgets of requests and of unread answers."""

    methods: Mapping[str, Method]
    limits: Limits
    budget: RequestBudget
    unread: UnreadOfAll
    decompressor: Decompressor
