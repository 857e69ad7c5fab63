"""Rules that the whole tree keeps: sizes, names of files, and no private name of another package or module."""

import ast
import runpy
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

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
    "plugin.py": "what a feature offers",
    "registry.py": "what is registered, models or workflows",
    "version.py": "the version; `ts.version` is TorchServe's name for it",
    "websocket.py": "WebSockets: the protocol, and the sessions of a Truss",
    "worker.py": "a worker: its process, and the frontend's end of it",
}
#: Names of files that say nothing, and the files that have them because others import them so.
VAGUE_NAMES = frozenset(("base.py", "common.py", "helpers.py", "misc.py", "util.py", "utils.py"))
VAGUE_FILES = {
    "backend/ts/handler_utils/utils.py": "TorchServe's name",
    "backend/ts/torch_handler/request_envelope/base.py": "TorchServe's name",
    "backend/ts/utils/util.py": "TorchServe's name",
    "tests/e2e/stand_in_vllm/vllm/utils.py": "vLLM's name",
}
#: Named tuples have these, which are documented (their names cannot clash with fields so).
NAMED_TUPLES = frozenset(("_asdict", "_field_defaults", "_fields", "_make", "_replace"))
#: Names with an underscore that their packages document as the way to do a thing, and that have no other.
DOCUMENTED = frozenset(("os._exit", "torch._dynamo", "torch._export", "torch._inductor"))
#: Parts of aiohttp that are a server's; the product uses its client.
SERVERS = ("aiohttp.web", "aiohttp.http", "aiohttp.base_protocol", "aiohttp.streams")


def files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not path.name.endswith(("_pb2.py", "_pb2_grpc.py")):  # generated
                yield path


def modules() -> list[tuple[Path, ast.Module]]:
    return [parsed(path) for path in files("frontend", "backend")]


@cache
def parsed(path: Path) -> tuple[Path, ast.Module]:
    return path.relative_to(ROOT), ast.parse(path.read_text())


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


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the full name of everything that a module imports."""
    for node in ast.walk(tree):
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
    told = {
        path: (ast.get_docstring(tree) or "").partition("\n\n")[0]
        for path, tree in map(parsed, files(*FOLDERS))
        if tree.body
    }
    found = [
        f"{path}: {text!r}" for path, text in told.items() if text.count("\n") > 2 or not text.endswith((".", ":"))
    ]
    assert not found, "\n".join(found)


def test_functions_are_short() -> None:
    found = {}
    for path, tree in map(parsed, files(*FOLDERS)):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    found[f"{path}: {node.name}"] = f"{path}:{node.lineno}: {node.name} has {lines} lines"
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
    trees = {".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__"): tree for path, tree in modules()}
    graph = {
        name: {each for _, full in imported(when_loaded(tree)) for each in (full, full.rpartition(".")[0])}
        & trees.keys() - {name}
        for name, tree in trees.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_house_is_within_its_limits() -> None:
    checked = subprocess.run([ROOT / "scripts" / "house"], capture_output=True, text=True, timeout=280, check=False)
    assert checked.returncode == 0, checked.stderr


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


def test_the_files_on_the_way_of_a_prediction_exist() -> None:
    house = runpy.run_path(str(ROOT / "scripts" / "house"))
    assert house["way_that_is_gone"]() == []


def test_no_private_name_of_another_module_is_imported() -> None:
    found = [
        f"{path}:{line}: {name}"
        for path, tree in modules()
        for line, name in imported(tree)
        if any(map(is_private, name.split(".")))
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
        f"{path}:{line}: {name}"
        for path, tree in modules()
        for line, name in imported(tree)
        if name.startswith(SERVERS)
    ]
    assert not found, "\n".join(found)
