"""Clients' addresses as gRPC writes them."""

from __future__ import annotations

import ipaddress


def grpc_name(address: object) -> str:
    """``ipv4:127.0.0.1:5``, ``ipv6:%5B::1%5D:5``; ``unknown`` for what is neither."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    is_ipv6 = ipaddress.ip_address(host.partition("%")[0]).version == 6
    return f"ipv6:%5B{host}%5D:{port}" if is_ipv6 else f"ipv4:{host}:{port}"
