"""Code asks the record of a contract or of a store what it can do, and compares its name only in its own package."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Where the records are, and what belongs to one contract.
OWN = (
    "frontend/torchserve_py/core/archive/contract.py",
    "frontend/torchserve_py/core/plans/contracts/",
    "frontend/torchserve_py/contracts/truss/",
    "backend/ts/contracts/truss/",
    "backend/ts/contracts/mlserver/",
)


def compared(source: str) -> Iterator[int]:
    """Yield the lines that compare what they call a contract with a name; a look-up in a table is no comparison."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            is_lookup = all(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops) and all(
                isinstance(container, ast.Name) for container in node.comparators
            )
            if not is_lookup and "contract" in ast.unparse(node).lower():
                yield node.lineno


def test_no_code_compares_the_name_of_a_contract() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in ("frontend", "backend")
        for path in (ROOT / folder).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(OWN)
        if "contract" in (source := path.read_text()).lower()
        for line in compared(source)
    ]
    assert found == []


def test_no_code_of_the_frontend_compares_the_name_of_a_store() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "frontend").rglob("*.py")
        if "store" in (source := path.read_text())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        for operand in (node.left, *node.comparators)
        if (isinstance(operand, ast.Attribute) and operand.attr == "store")
        or (isinstance(operand, ast.Subscript) and ast.unparse(operand.slice) == "'store'")
    ]
    assert found == []
