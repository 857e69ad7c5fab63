"""The addresses of clients as gRPC writes them, and keep-alive for clients whose machine is gone."""

import asyncio
import ipaddress
import socket


def grpc_name(address: object) -> str:
    """Return ``ipv4:127.0.0.1:5``, ``ipv6:%5B::1%5D:5``, or ``unknown`` for other addresses."""
    if not isinstance(address, tuple):
        return "unknown"
    host, port = address[:2]
    is_ipv6 = ipaddress.ip_address(host.partition("%")[0]).version == 6
    return f"ipv6:%5B{host}%5D:{port}" if is_ipv6 else f"ipv4:{host}:{port}"


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the system close the connection when the client's machine no longer answers."""
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
