"""Nothing in the product uses a private name of another package: any minor release of that package may take it away."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("model_archiver", "torchserve_py", "ts")
#: Named tuples have these, which are documented (their names cannot clash with fields so).
NAMED_TUPLES = frozenset(("_asdict", "_field_defaults", "_fields", "_make", "_replace"))
#: Names with an underscore that their packages document as the way to do a thing, and that have no other.
DOCUMENTED = frozenset(("os._exit", "torch._dynamo", "torch._export", "torch._inductor"))
#: Parts of aiohttp that are a server's; the product uses its client.
SERVERS = ("aiohttp.web", "aiohttp.http", "aiohttp.base_protocol", "aiohttp.streams")


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("frontend", "backend"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):  # generated
                yield path.relative_to(ROOT), ast.parse(path.read_text())


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLES


def defined_in(tree: ast.Module) -> Iterator[str]:
    """The names that a module gives to something, its attributes and those of its objects included."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str() as name):
                yield name
            case ast.Constant(value=str() as name) if is_private(name):  # in __slots__, or for setattr
                yield name


def test_no_private_name_of_another_package_is_imported() -> None:
    found = []
    for path, tree in modules():
        for node in ast.walk(tree):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                f"{path}:{node.lineno}: {name}"
                for name in names
                if name.partition(".")[0] not in OURS and any(map(is_private, name.split(".")))
            ]
    assert not found, "\n".join(found)


def test_no_private_attribute_of_another_package_is_used() -> None:
    known = {name for _, tree in modules() for name in defined_in(tree)}
    found = [
        f"{path}:{node.lineno}: {node.attr}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in known
        if ast.unparse(node) not in DOCUMENTED
    ]
    assert not found, "\n".join(found)


def test_no_server_of_aiohttp_is_used() -> None:
    found = [
        f"{path}:{node.lineno}: {name}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [f"{node.module}.{alias.name}" for alias in node.names]
        )
        if name.startswith(SERVERS)
    ]
    assert not found, "\n".join(found)
