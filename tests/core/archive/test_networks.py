"""Which addresses count as the public internet, and what a network that is allowed adds."""

from ipaddress import ip_network

import pytest

from torchserve_py.core.archive.networks import Forbidden, check_address, check_host


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.1.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1%lo",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    with pytest.raises(Forbidden, match="no address of the public internet"):
        check_address(address, ())


@pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::5db8:d70e"])
def test_a_public_address_passes(address: str) -> None:
    check_address(address, ())


def test_an_allowed_network_is_added_and_nothing_else() -> None:
    allowed = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    for address in ("10.9.8.7", "::ffff:10.9.8.7", "fd00::1", "93.184.215.14"):
        check_address(address, allowed)
    with pytest.raises(Forbidden):
        check_address("192.168.0.1", allowed)


@pytest.mark.parametrize("host", ["127.0.0.1", "0x7f.1", "2130706433", "::1"])
def test_a_host_that_is_an_address_is_checked_however_it_is_written(host: str) -> None:
    with pytest.raises(Forbidden, match=f"^{host}: "):
        check_host(host, ())
    check_host(host, (ip_network("127.0.0.0/8"), ip_network("::1/128")))


@pytest.mark.parametrize("host", ["localhost", "a" * 70, "a..b"])
def test_a_name_passes_until_it_is_resolved(host: str) -> None:
    check_host(host, ())
