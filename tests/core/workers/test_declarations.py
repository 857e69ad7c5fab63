"""What workers may declare of their models."""

import pytest

from torchserve_py.core.workers.startup import MAX_CHARACTERS, MAX_VALUES, checked_declarations

DEEP: list[object] = []
for _ in range(200):
    DEEP = [DEEP]


def test_usable_declarations_pass() -> None:
    declared = {"platform": "x", "inputs": [{"name": "a", "shape": [-1, 3]}], "routes": [["/a", ["GET"], "f"]]}
    assert checked_declarations(declared) is declared


@pytest.mark.parametrize(
    "declared",
    [
        None,
        5,
        [],
        {5: 1},
        {"a": [0] * MAX_VALUES},
        {"a": [[0] * 200] * 200},
        {"a": "x" * (MAX_CHARACTERS + 1)},
        {"a": DEEP},
    ],
)
def test_unusable_declarations_are_refused(declared: object) -> None:
    with pytest.raises(ValueError, match="its model declares"):
        checked_declarations(declared)
