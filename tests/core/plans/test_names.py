"""What models and versions may be called."""

import pytest

from torchserve_py.core.plans.plan import MAX_NAME_BYTES, check_names
from torchserve_py.core.serving.errors import InvalidModel


def test_usable_names_pass() -> None:
    for name in ("a", "resnet-18", "ünïcode", "with space", "x" * MAX_NAME_BYTES):
        check_names(name, "1.0-rc/2")


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("a/b", "1"),
        (".", "1"),
        ("..", "1"),
        ("stats", "1"),
        ("a\nb", "1"),
        ("a\x1b[2J", "1"),
        ("a", "1.0\n2026-01-01 00:00:00 [INFO ] all is well"),
        ("a", "1\x1b[31m"),
        ("a" * (MAX_NAME_BYTES + 1), "1"),
        ("ü" * MAX_NAME_BYTES, "1"),
        ("a", "1" * (MAX_NAME_BYTES + 1)),
        ("\ud800", "1"),
    ],
)
def test_unusable_names_are_refused(name: str, version: str) -> None:
    with pytest.raises(InvalidModel) as refused:
        check_names(name, version)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500
