"""What a Python file that uses `ts.serve` says about how it is to be served, read without running it."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from torchserve_py.base.python_source import parse
from torchserve_py.core.archive.errors import InvalidArchive
from torchserve_py.core.archive.model_source import ModelSource
from ts.protocol.regular_files import read_regular
from ts.serve_decorator import METHOD, STATE, ServeOptions

_DECORATOR: Final = "serve"
_PACKAGE: Final = "ts"
#: A file with more is no source that a person has written.
_MOST_BYTES: Final = 16 << 20
#: How long a request waits for others, unless the file says otherwise (milliseconds): the server's own default is for
#: batches that are worth a longer wait.
_DELAY: Final = 10
_MAX_SEQUENCES: Final = 1000
_MAX_IDLE: Final = 600_000
#: How long a stored sequence is kept after its last step (seconds): 30 days.
_EXPIRE: Final = 30 * 86_400
#: Schemes of the URLs that `store` may be.
_FILE: Final = "file"
_REDIS: Final = frozenset(("redis", "rediss", "redis+sentinel", "rediss+sentinel", "unix"))
_NAMED_STORES: Final = ("memory", _FILE, "redis")
#: Keys of `model-config.yaml` that mean nothing for a function, and what reads them.
UNREAD: Final = {
    **dict.fromkeys(("autocast", "dtype", "channelsLast", "pt2"), "BaseHandler"),
    **dict.fromkeys(("dali", "deepspeed", "pippy", "micro_batching"), "handlers of TorchServe's interface"),
}
_NO_STEPS: Final = "calls have no steps between which requests could join; batch_size in @serve lets one get several"
_FIXED: Final = {"continuousBatching": (False, _NO_STEPS)}
#: The parameters that requests of OpenAI's clients have.
_OF_OPENAI: Final = frozenset(("messages", "prompt", "input"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_source(file: Path, function: str = "") -> ModelSource | None:
    """Return what the file gives to the decorator; None if that is nothing, or it is no Python: its worker will tell.

    ``function`` chooses one of several functions and classes.

    Raises InvalidArchive: the decorator is used in a way that cannot work; the message has the file and the line.
    OSError: the file cannot be read.
    """
    tree = _tree(file)
    if tree is None:
        return None
    found = _decorated(tree)
    if not found:
        names = set(_names_of_decorator(tree))
        is_object = not function and any(_gives_an_object(node, names) for node in tree.body)
        return ModelSource(file.stem, {}, UNREAD, _FIXED) if is_object else None
    last = next(reversed(found))
    if function and function not in found:
        if any(isinstance(each, _Function) and each.name == function for each in tree.body):
            return None  # a handler of TorchServe's interface, which is called as it is
        text = f"{function} is not decorated with {_DECORATOR}; the models of this file are {', '.join(found)}"
        raise _refusal(file, found[last][0], text)
    if not function and len(found) > 1:
        text = f"this file has {len(found)} models: {', '.join(found)}; choose one, such as {file.name}:{last}"
        raise _refusal(file, found[last][0], text)
    node, decorator = found[function or last]
    options, called = _options(file, decorator), _function(file, node)
    fixed = _fixed(called, options)
    return ModelSource(node.name, _config(file, called, options), UNREAD, fixed, is_one_of_several=len(found) > 1)


def models_in(file: Path) -> Sequence[str]:
    """Return the names of the functions and classes that a file decorates. Raises OSError: it cannot be read."""
    tree = _tree(file)
    return () if tree is None else tuple(_decorated(tree))


def _tree(file: Path) -> ast.Module | None:
    """Return what a file has that may use the decorator; None for any other file."""
    try:
        text = read_regular(file, _MOST_BYTES)
        return parse(text) if _DECORATOR.encode() in text else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: expressions that are nested too deep
        return None


def _decorated(tree: ast.Module) -> dict[str, tuple[_Function | ast.ClassDef, ast.expr]]:
    """Return the functions and classes that a module decorates, each with its decorator."""
    names = set(_names_of_decorator(tree))
    return {
        node.name: (node, decorator)
        for node in tree.body
        if isinstance(node, _Function | ast.ClassDef)
        for decorator in node.decorator_list
        if ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator) in names
    }


def _names_of_decorator(tree: ast.Module) -> Iterator[str]:
    """Yield the names under which a module knows the decorator."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == _PACKAGE and not node.level:
            yield from (each.asname or each.name for each in node.names if each.name == _DECORATOR)
        elif isinstance(node, ast.Import):
            yield from (f"{each.asname or each.name}.{_DECORATOR}" for each in node.names if each.name == _PACKAGE)


def _gives_an_object(node: ast.stmt, names: set[str]) -> bool:
    """Whether a statement is ``serve(thing)`` or assigns that."""
    call = node.value if isinstance(node, ast.Expr | ast.Assign) else None
    return isinstance(call, ast.Call) and bool(call.args) and ast.unparse(call.func) in names


def _options(file: Path, decorator: ast.expr) -> ServeOptions:
    given: dict[str, Any] = {}
    for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
        if keyword.arg not in ServeOptions._fields:
            known = ", ".join(ServeOptions._fields)
            raise _refusal(file, keyword, f"{_DECORATOR} has no argument {keyword.arg or '**'}; it has {known}")
        try:
            given[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError):
            value = ast.unparse(keyword.value)
            text = f"{keyword.arg} is to be written out, as the server reads it without running the file: {value}"
            raise _refusal(file, keyword, text) from None
    return ServeOptions(**given)


def _function(file: Path, node: _Function | ast.ClassDef) -> _Function:
    if not isinstance(node, ast.ClassDef):
        return node
    methods = [each for each in node.body if isinstance(each, _Function) and each.name == METHOD]
    if not methods:
        raise _refusal(file, node, f"the class {node.name} needs a method {METHOD}, which answers requests")
    return methods[-1]


def _parameters(function: _Function) -> set[str]:
    return {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}


def _fixed(function: _Function, options: ServeOptions) -> dict[str, tuple[Any, str]]:
    """Return the keys that can have one value only for a function, see `ModelSource`."""
    fixed: dict[str, tuple[Any, str]] = dict(_FIXED)
    name = function.name
    if options.batch_size is None and not isinstance(function, ast.AsyncFunctionDef):
        why = f"{name} takes one request at a time; write batch_size in @serve, then each parameter is a list"
        fixed["batchSize"] = 1, why
    if not options.openai and _OF_OPENAI.isdisjoint(_parameters(function)):
        why = f"{name} takes none of messages, prompt and input; write openai=True in @serve and take one of them"
        fixed["openai"] = False, why
    return fixed


def _config(file: Path, function: _Function, options: ServeOptions) -> dict[str, Any]:
    is_async = isinstance(function, ast.AsyncFunctionDef)
    stateful = STATE in _parameters(function)
    config: dict[str, Any] = {}
    if is_async:
        if options.batch_size is not None:
            text = f"{function.name} is async, so each request is a call of its own: batch_size needs def without async"
            raise _refusal(file, function, text)
        config["asyncCommunication"] = True
    if options.batch_size is not None:
        delay = _DELAY if options.max_batch_delay is None else options.max_batch_delay
        config |= {"batchSize": options.batch_size, "maxBatchDelay": delay}
    if stateful:
        idle = _MAX_IDLE if options.idle is None else round(1000 * options.idle)
        most = _MAX_SEQUENCES if options.sequences is None else options.sequences
        config |= {"sequenceBatching": True, "sequenceMaxIdleMSec": idle, "maxNumSequence": most}
    elif without_state := [each for each in ("store", "idle", "sequences") if getattr(options, each) is not None]:
        text = f"{function.name} has no parameter {STATE}, so {', '.join(without_state)} in @serve would do nothing"
        raise _refusal(file, function, text)
    if options.openai:
        config["openai"] = True
    if options.threads is not None:
        config["threads"] = options.threads
    if options.store:
        config["handler"] = {"cache": _cache(file, function, options.store)}
    return config


def _cache(file: Path, function: _Function, store: Any) -> dict[str, Any]:
    """Return the keys of `handler.cache` for what `store` names."""
    if store == "memory":
        return {"store": store}
    if store in _NAMED_STORES:
        return {"store": store, "expireSec": _EXPIRE}
    url = urlsplit(store) if isinstance(store, str) else urlsplit("")
    if url.scheme in _REDIS:
        return {"store": "redis", "url": store, "expireSec": _EXPIRE}
    if url.scheme == _FILE and not url.netloc and url.path:
        return {"store": _FILE, "path": unquote(url.path), "expireSec": _EXPIRE}
    shown = urlsplit(store)._replace(netloc="…").geturl() if url.netloc else repr(store)
    text = f"store is {shown}; it is {', '.join(_NAMED_STORES)}, or a URL, file:///PATH or redis://HOST:PORT/0"
    raise _refusal(file, function, text)


def _refusal(file: Path, node: ast.AST, text: str) -> InvalidArchive:
    return InvalidArchive(f"{file}:{getattr(node, 'lineno', 1)}: {text}")
