"""What `torchserve-py serve` tells of a model that is ready: where it answers, what it takes, and a curl that works."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from torchserve_py.contracts.served_functions.own_path import own_path
from torchserve_py.contracts.served_functions.request_examples import tensors_of
from torchserve_py.core.archive.contract import TORCHSERVE
from torchserve_py.core.serving.serving import ServedModel
from ts.contracts.served_functions.json_examples import definition
from ts.protocol.media_types import BYTES, JSON, TEXT

#: The body where nothing is known of what a model takes.
_BODY: Final = "hello"
#: What stands for the key in a curl that does not show it.
VARIABLE: Final = "$KEY"
_SAMPLES: Final = ("sample", "samples", "examples")
_MEDIA_TYPES: Final = {".json": JSON, ".txt": TEXT, ".jpg": "image/jpeg", ".png": "image/png", ".wav": "audio/wav"}


class _Manner(NamedTuple):
    """How models of a contract are introduced."""

    kind: str | None  # what they are called; None for the usual ones
    path: str  # of their requests
    takes: str  # if they do not declare it
    try_path: str  # of a request to try then
    try_body: Sequence[str]  # curl's options for its body


def _body(media_type: str, body: str) -> list[str]:
    is_file = body.startswith("@")
    return ["-H", f"content-type: {media_type}", "--data-binary" if is_file else "-d", body]


_MANNERS: Final = {
    TORCHSERVE: _Manner(
        None, "/predictions/{}", "what its handler takes; this is a guess", "/predictions/{}", _body(TEXT, _BODY)
    ),
    "truss": _Manner(
        "Truss", "/v1/models/{}:predict", "JSON, which its predict gets", "/v1/models/{}:predict", _body(JSON, "{}")
    ),
    "mlserver": _Manner(
        "MLServer",
        "/v2/models/{}/infer",
        "tensors that it does not declare; this shows its metadata",
        "/v2/models/{}",
        (),
    ),
    "sagemaker": _Manner(
        "SageMaker",
        "/models/{}/invoke",
        "what its script or its weights take; this is a guess",
        "/models/{}/invoke",
        _body(JSON, "[[1, 2]]"),
    ),
    "mlflow": _Manner(
        "MLflow",
        "/models/{}/invoke",
        "what its signature says; this is a guess",
        "/models/{}/invoke",
        _body(JSON, '{"inputs": [[1, 2]]}'),
    ),
}


def introduction(
    model: ServedModel, declared: Mapping[str, Any], folder: Path, base: str, key: str | None
) -> Iterator[str]:
    """Yield the lines about one model, whose files lie in a folder.

    ``declared``: see `ts.protocol.messages.Loaded`. ``base``: the URL of the inference API. ``key``: the token that
    requests must carry, if any.
    """
    takes, path, data = _request(model, declared, folder)
    streams = bool((declared.get("function") or {}).get("streams"))
    kinds = [
        _manner_of(model).kind,
        "stateful" if model.is_stateful else None,
        "streams" if streams else None,
    ]
    about = ", ".join(each for each in kinds if each)
    yield f"{model.name} ({about})  takes {takes}" if about else f"{model.name}  takes {takes}"
    options = ["-N"] if streams else []
    options += ["-H", f"Authorization: Bearer {key}"] if key is not None else []
    options += ["-H", "ts_request_sequence_id: demo"] if model.is_stateful else []
    yield f"  curl {typed([f'{base}{path}', *options, *data])}"


def typed(words: Sequence[str]) -> str:
    """Return a command line for a shell, in which `VARIABLE` is a variable of the shell."""
    return " ".join(f'"{word}"' if word.endswith(f" {VARIABLE}") else shlex.quote(word) for word in words)


def _manner_of(model: ServedModel) -> _Manner:
    """Return how a model is introduced; one whose contract a package has added, as a handler."""
    return _MANNERS.get(model.contract.name, _MANNERS[TORCHSERVE])


def _request(model: ServedModel, declared: Mapping[str, Any], folder: Path) -> tuple[str, str, list[str]]:
    """Return what a model takes in words, the path of its requests, and curl's options for a body."""
    if (function := declared.get("function")) is not None:
        schema = function["request"]
        path, media_type, names = own_path(model.name), function["takes"], function["parameters"]
        sample = None if media_type in (TEXT, JSON) else _sample(folder)
        if sample is not None:
            own_type = _MEDIA_TYPES.get(sample.suffix, media_type)
            return f"a file ({media_type})", path, _body(own_type, f"@{_short(sample)}")
        if media_type == BYTES:
            return f"bytes ({media_type})", path, _body(media_type, _BODY)
        example = function.get("example")
        if media_type == TEXT and isinstance(example, str) and "openai" not in function:
            return f"{_in_words(schema)} ({media_type})", path, _body(media_type, example)
        words = f"{_in_words(schema)} ({media_type})"
        members = {names[0]: schema} if len(names) == 1 else schema.get("properties", {})
        if files := [each for each, member in members.items() if _file_kind(member)]:
            words += f", or a form, such as -F {files[0]}=@FILE"
        if function.get("openai") and example is not None:
            path = f"/{function['openai']}"
            example = {"model": model.name, **(example if len(names) > 1 else {names[0]: example})}
        return words, path, _body(JSON, json.dumps(example))
    manner = _manner_of(model)
    path = manner.path.format(model.name)
    if (sample := _sample(folder)) is not None:
        content_type = _MEDIA_TYPES.get(sample.suffix, BYTES)
        return f"{content_type}, such as {_short(sample)}", path, _body(content_type, f"@{_short(sample)}")
    if inputs := declared.get("inputs"):
        words = ", ".join(f"{each['name']} {each['datatype']}{list(each['shape'])}" for each in inputs)
        example = tensors_of(inputs)
        if example is not None:
            return words, f"/v2/models/{model.name}/infer", _body(JSON, json.dumps(example))
        return words, f"/v2/models/{model.name}", []
    if schema := (declared.get("schema") or {}).get("input_schema"):
        return _in_words(schema), path, _body(JSON, json.dumps(declared.get("example")))
    return manner.takes, manner.try_path.format(model.name), list(manner.try_body)


def _in_words(schema: Mapping[str, Any]) -> str:
    """Return a JSON Schema in a few words: the members of an object, and their types."""
    if "$ref" in schema:
        schema = definition(schema, schema)
    members = schema.get("properties")
    if not members:
        return _file_kind(schema) or str(schema.get("type") or "any JSON")
    types = {
        name: _file_kind(each) or each.get("type") or definition(schema, each).get("type", "any")
        for name, each in members.items()
    }
    return "{" + ", ".join(f"{name}: {kind}" for name, kind in types.items()) + "}"


def _file_kind(schema: Mapping[str, Any]) -> str:
    """Return what kind of file a value is, such as "image"; empty if it is none."""
    return str(schema.get("contentMediaType", "")).partition("/")[0]


def _sample(folder: Path) -> Path | None:
    """Return the first file of the folder with samples that may lie beside a model."""
    places = [folder / name for name in _SAMPLES if (folder / name).is_dir()]
    files = sorted(file for place in places for file in place.iterdir() if file.is_file() and file.suffix != ".md")
    return files[0] if files else None


def _short(file: Path) -> str:
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)
