"""Splitting paths."""

import pytest

from torchserve_py.endpoints.requests import split_path


@pytest.mark.parametrize(
    ("target", "segments"),
    [
        ("/", ()),
        ("/ping", ("ping",)),
        ("/ping/", ("ping",)),
        ("/ping?x=/a", ("ping",)),
        ("/predictions/noop/1.0", ("predictions", "noop", "1.0")),
        ("/predictions/noop///", ("predictions", "noop")),
        ("/predictions//noop", ("predictions", "", "noop")),
        ("/predictions/a%20b", ("predictions", "a b")),
        ("/predictions/a%2Fb", ("predictions", "a", "b")),
        ("/predictions/%ff", ("predictions", "�")),
        ("/predictions/caf\udcc3\udca9", ("predictions", "café")),
        ("http://host:1/predictions/noop?x", ("predictions", "noop")),
        ("http://host", ()),
        ("*", ()),
        ("", ()),
    ],
)
def test_split_path(target, segments):
    assert split_path(target) == segments
