"""Bind addresses: what TorchServe accepts, and its sentences for what it does not."""

import pytest

from torchserve_py.base.settings.addresses import Address, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://127.0.0.1:8080", Address("http", "127.0.0.1", 8080)),
        ("HTTP://localhost:9", Address("http", "localhost", 9)),
        ("http://host", Address("http", "host", 8081)),
        ("https://host", Address("https", "host", 8444)),
        ("http://host:0", Address("http", "host", 0)),
        ("http://[::]:8080", Address("http", "::", 8080)),
        ("https://[::1]", Address("https", "::1", 8444)),
        ("http://[fe80::1%eth0]:1", Address("http", "fe80::1%eth0", 1)),
        ("unix:/tmp/inference.sock", Address("unix", path="/tmp/inference.sock")),
    ],
)
def test_right_addresses(text, expected):
    assert parse_address(text, http_port=8081, https_port=8444) == expected


@pytest.mark.parametrize(
    "text", ["http://[host]:80", "http://[127.0.0.1]:80", "http://[]", "http://[::1", "http://[::g]"]
)
def test_wrong_addresses_in_brackets(text):
    with pytest.raises(ValueError, match="Invalid binding address: "):
        parse_address(text, http_port=80, https_port=443)


@pytest.mark.parametrize(
    "text", ["", "127.0.0.1:8080", "http://host:80/", "ftp://host", "http://:80", "http://::1:80", "unix:x", "unix:/"]
)
def test_wrong_addresses(text):
    with pytest.raises(ValueError, match="Invalid binding address: "):
        parse_address(text, http_port=80, https_port=443)


def test_ports_out_of_range():
    with pytest.raises(ValueError, match=r"^Invalid port number: 65535$"):
        parse_address("http://host:65535", http_port=80, https_port=443)


def test_a_socket_path_that_the_system_cannot_bind_is_refused():
    with pytest.raises(ValueError, match="at most 107 bytes"):
        parse_address("unix:/" + "x" * 107, http_port=80, https_port=443)


@pytest.mark.parametrize("text", ["http://localhost:8080", "http://[::1]:8080", "https://host:443", "unix:/tmp/a.sock"])
def test_an_address_is_shown_as_it_is_written(text):
    assert str(parse_address(text, http_port=80, https_port=443)) == text
