"""Which machines an archive may be downloaded from, by address: the public internet and what the operator adds to it.

A URL that the operator allows by name may still lead to an address that only this machine can reach (loopback, the
metadata service of a cloud, an internal service), because somebody else answers for the name. So the addresses that a
name stands for are looked at before anything is sent, those of every redirect too, and again the address that the
connection has really been made to: the name may stand for another one by then (`connections` does so).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

#: IPv4 addresses as networks that speak only IPv6 write them (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")
_SETTING = "allowed_url_networks"


class Forbidden(ValueError):
    """The address is neither public nor in a network that the operator allows; the message says which."""


def check_address(text: str, allowed: Sequence[Network]) -> None:
    """Let an IP address pass that is public or in one of the networks.

    Raises:
        Forbidden: It is not.
    """
    address = _plain(ip_address(text.partition("%")[0]))
    if any(address in network for network in allowed):
        return
    if not address.is_global or address.is_multicast or address.is_reserved:
        bits = 32 if isinstance(address, IPv4Address) else 128
        raise Forbidden(
            f"{address} is no address of the public internet; allow it in config.properties by its network, such as"
            f" {_SETTING}={address}/{bits}"
        )


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that is written as an IPv6 one, where it is."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def check_host(host: str, allowed: Sequence[Network]) -> None:
    """Let a host pass all of whose addresses may be connected to.

    Raises:
        Forbidden: One of them may not.
        OSError: The host has no address.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label that is empty or too long
        raise OSError(f"{host!r} is no name of a host") from error
    for *_, address in found:
        try:
            check_address(str(address[0]), allowed)
        except Forbidden as error:
            raise Forbidden(f"{host}: {error}") from None


def is_address(host: str) -> bool:
    """Whether a host is written as an address, in any of the forms that the system takes for one (``0x7f.1``)."""
    try:
        socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return False
    return True
