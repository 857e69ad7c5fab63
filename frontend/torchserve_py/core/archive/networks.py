"""Which addresses an archive may be downloaded from: those of the public internet, and what the operator adds.

A URL that the operator allows by name may still lead to an address that only this machine can reach (loopback, the
metadata service of a cloud, an internal service), because another party answers for the name. So `http_source` checks
the addresses that a name is resolved to, for redirects too, and connects to those very addresses.
"""

import socket
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network

#: IPv4 addresses as networks that speak only IPv6 write them (RFC 6052).
_NAT64 = IPv6Network("64:ff9b::/96")
_SETTING = "allowed_url_networks"


class Forbidden(ValueError):
    """The address is neither public nor in a network that the operator allows; the message says which."""


def check_address(text: str, allowed: Sequence[Network]) -> None:
    """Raise Forbidden for an IP address that is neither public nor in one of the networks."""
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
    """The IPv4 address that an IPv6 address maps to, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address


def check_host(host: str, allowed: Sequence[Network]) -> None:
    """Check a host that is written as an address, in any form that the system takes for one (``0x7f.1``).

    Raises Forbidden. Names pass: their addresses are checked when they are resolved.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return
    check_addresses(host, (str(address[0]) for *_, address in found), allowed)


def check_addresses(host: str, addresses: Iterable[str], allowed: Sequence[Network]) -> None:
    """Check the addresses of a host. Raises Forbidden, naming the host."""
    try:
        for each in addresses:
            check_address(each, allowed)
    except Forbidden as error:
        raise Forbidden(f"{host}: {error}") from None
