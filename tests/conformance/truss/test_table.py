"""Every row of the contract's table of black-box tests has a test."""

import ast
import re
from pathlib import Path

from tests.conformance.truss.test_answers import CASES

ROWS = set(range(1, 87))


def rows_of(name: str) -> set[int]:
    """The rows that a test's name tells: test_row_7_…, test_rows_13_24_…, test_rows_16_to_23_…"""
    numbers = re.match(r"test_rows?((?:_\d+|_to_\d+)+)", name)
    if numbers is None:
        return set()
    if span := re.fullmatch(r"_(\d+)_to_(\d+)", numbers[1]):
        return set(range(int(span[1]), int(span[2]) + 1))
    return {int(number) for number in numbers[1].split("_") if number}


def test_every_row_has_a_test() -> None:
    rows = {case.row for case in CASES}
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                rows |= rows_of(node.name)
    assert rows == ROWS
