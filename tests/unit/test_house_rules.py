"""Rules that the whole tree keeps: sizes, names of files, and no private name of another package or module."""

import ast
import gc
import runpy
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("backend", "benchmarks", "frontend", "handlers", "tests")
#: A file has one concept. A state machine stays in one file, even if that is long; h11's largest has 659 lines.
MOST_LINES = 700
MOST_LINES_OF_A_FUNCTION = 60
#: Longer files, with the reason.
LONG_FILES: dict[str, str] = {}
#: Longer functions, with the reason.
LONG_FUNCTIONS: dict[str, str] = {}
#: Names of files that several packages have, with what all of them are.
SHARED_NAMES = {
    "model.py": "one of them is a module of TorchServe's archiver",
    "errors.py": "the errors of one package",
    "frames.py": "the frames of one protocol",
    "manifest.py": "the manifest of an archive, of a model or of a workflow",
    "plugin.py": "what a plugin offers",
    "utils.py": "the name in TorchServe and in SageMaker's toolkit",
    "registry.py": "what is registered, models or workflows",
    "version.py": "the version; `ts.version` is TorchServe's name for it",
    "websocket.py": "WebSockets: the protocol, and the sessions of a Truss",
    "worker.py": "a worker: its process, and the frontend's end of it",
}
#: Names of files that say nothing, and the files that have them because others import them so.
VAGUE_NAMES = frozenset(("base.py", "common.py", "helpers.py", "misc.py", "util.py", "utils.py"))
VAGUE_FILES = {
    "backend/ts/contracts/sagemaker/toolkit/utils.py": "the name in SageMaker's toolkit",
    "backend/ts/handler_utils/utils.py": "TorchServe's name",
    "backend/ts/torch_handler/request_envelope/base.py": "TorchServe's name",
    "backend/ts/utils/util.py": "TorchServe's name",
    "tests/contracts/stand_in_vllm/vllm/utils.py": "vLLM's name",
}
#: Named tuples have these, which are documented (their names cannot clash with fields so).
NAMED_TUPLES = frozenset(("_asdict", "_field_defaults", "_fields", "_make", "_replace"))
#: Names with an underscore that their packages document as the way to do a thing, and that have no other.
DOCUMENTED = frozenset(("os._exit", "torch._dynamo", "torch._export", "torch._inductor"))
#: Parts of aiohttp that are a server's; the product uses its client.
SERVERS = ("aiohttp.web", "aiohttp.http", "aiohttp.base_protocol", "aiohttp.streams")


@pytest.fixture(autouse=True)
def trees_without_collection() -> Iterator[None]:
    """While a tree is made, the collector of garbage would walk it again and again."""
    gc.disable()
    yield
    gc.enable()


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):  # generated
                yield path


class Facts(NamedTuple):
    """What the rules ask of a file. Its tree is not kept: the collector would walk the trees of the whole house."""

    path: Path
    is_empty: bool
    docstring: str
    functions: list[tuple[int, str, int]]  # line, name, lines
    imported: list[tuple[int, str]]
    imported_when_loaded: list[str]
    private_names: set[str]  # those that it gives to something
    private_attributes: list[tuple[int, str, str]]  # line, name, the whole expression


def modules() -> list[Facts]:
    return [facts(path) for path in files("frontend", "backend")]


@cache
def facts(path: Path) -> Facts:
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree))
    return Facts(
        path.relative_to(ROOT),
        not tree.body,
        ast.get_docstring(tree) or "",
        [
            (node.lineno, node.name, (node.end_lineno or 0) - node.lineno + 1)
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ],
        [*imported(nodes)],
        [name for _, name in imported(ast.walk(when_loaded(tree)))],
        {name for name in defined_in(nodes) if is_private(name)},
        [
            (node.lineno, node.attr, ast.unparse(node))
            for node in nodes
            if isinstance(node, ast.Attribute) and is_private(node.attr)
        ],
    )


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in NAMED_TUPLES


def defined_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a module gives to something, its attributes and those of its objects included."""
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name) | ast.alias(asname=str() as name):
                yield name
            case ast.Constant(value=str() as name) if is_private(name):  # in __slots__, or for setattr
                yield name


def imported(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """The line and the full name of everything that a module imports."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def check(found: dict[str, str], excepted: dict[str, str]) -> None:
    """Every finding is excepted, and every exception is one that is needed."""
    assert not [text for place, text in found.items() if place not in excepted]
    unneeded = sorted(excepted.keys() - found.keys())
    assert not unneeded, "exceptions that are not needed"


def test_files_are_short() -> None:
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files(*FOLDERS)}
    check({path: f"{path} has {n} lines" for path, n in lines.items() if n > MOST_LINES}, LONG_FILES)


def test_the_first_paragraph_of_a_file_says_what_it_is_about() -> None:
    told = {each.path: each.docstring.partition("\n\n")[0] for each in map(facts, files(*FOLDERS)) if not each.is_empty}
    found = [
        f"{path}: {text!r}" for path, text in told.items() if text.count("\n") > 2 or not text.endswith((".", ":"))
    ]
    assert not found, "\n".join(found)


def test_functions_are_short() -> None:
    found = {}
    for each in map(facts, files(*FOLDERS)):
        for line, name, lines in each.functions:
            if lines > MOST_LINES_OF_A_FUNCTION:
                found[f"{each.path}: {name}"] = f"{each.path}:{line}: {name} has {lines} lines"
    check(found, LONG_FUNCTIONS)


def test_files_of_one_name_say_the_same_thing() -> None:
    places = defaultdict(list)
    for path in files("frontend", "backend"):
        if path.name != "__init__.py":
            places[path.name].append(str(path.relative_to(ROOT)))
    check({name: f"{name}: {paths}" for name, paths in places.items() if len(paths) > 1}, SHARED_NAMES)


def test_names_of_files_say_something() -> None:
    paths = [str(path.relative_to(ROOT)) for path in files(*FOLDERS) if path.name in VAGUE_NAMES]
    check({path: path for path in paths}, VAGUE_FILES)


def test_no_modules_import_each_other_in_a_circle() -> None:
    loaded = {
        ".".join(each.path.with_suffix("").parts[1:]).removesuffix(".__init__"): each.imported_when_loaded
        for each in modules()
    }
    graph = {
        name: {each for full in names for each in (full, full.rpartition(".")[0])} & loaded.keys() - {name}
        for name, names in loaded.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def when_loaded(tree: ast.Module) -> ast.Module:
    """What runs when a module is loaded, but for its functions and classes."""
    later = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for_types = "TYPE_CHECKING"
    body = [
        node
        for node in tree.body
        if not isinstance(node, later) and not (isinstance(node, ast.If) and ast.unparse(node.test) == for_types)
    ]
    return ast.Module(body, [])


def test_the_files_on_the_ways_exist_and_every_import_is_checked(tmp_path: Path) -> None:
    house = runpy.run_path(str(ROOT / "scripts" / "house"))
    assert house["problems_of_ways"]() == []
    assert house["problems_of_imports"](files("frontend", "backend")) == []
    named = tmp_path / "named.py"
    named.write_text(
        'A: Final = "ts.context"\nimport_module(A)\nimport_module("torch")\nimportlib.import_module(f"ts.{A}")\n'
    )
    assert [*house["named_modules"](named)] == ["ts.context", "ts."]


def test_no_private_name_of_another_module_is_imported() -> None:
    found = [
        f"{each.path}:{line}: {name}"
        for each in modules()
        for line, name in each.imported
        if any(map(is_private, name.split(".")))
    ]
    assert not found, "\n".join(found)


def test_no_private_attribute_of_another_package_is_used() -> None:
    known = {name for each in modules() for name in each.private_names}
    found = [
        f"{each.path}:{line}: {name}"
        for each in modules()
        for line, name, expression in each.private_attributes
        if name not in known and expression not in DOCUMENTED
    ]
    assert not found, "\n".join(found)


def test_no_server_of_aiohttp_is_used() -> None:
    found = [
        f"{each.path}:{line}: {name}" for each in modules() for line, name in each.imported if name.startswith(SERVERS)
    ]
    assert not found, "\n".join(found)
