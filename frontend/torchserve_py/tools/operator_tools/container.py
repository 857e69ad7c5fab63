"""What the container image runs: the server, set up for the platform that has started the container.

The image's working directory has ``config.properties``, ``model_store`` and a place for logs. A platform brings models
elsewhere and expects the server at addresses of its own:

==========  =================================  =====================================================================
platform    told by                            models
==========  =================================  =====================================================================
SageMaker   the argument ``serve``             in ``/opt/ml/model``; none at first with ``SAGEMAKER_MULTI_MODEL=true``
Vertex AI   a variable ``AIP_HTTP_PORT``       those of the image; the arguments are flags of the server
Azure ML    a variable ``AZUREML_MODEL_DIR``   there, or in its only folder
KServe      ``/mnt/models``, ``--model_dir=``  as ``config/config.properties`` says, in ``model-store``, or there
none        none of these                      those of the image; the arguments are flags of the server
==========  =================================  =====================================================================

KServe's own runtime kserve-torchserve starts ``torchserve --ts-config=…`` with the variable ``PROTOCOL_VERSION``; the
configuration and the models are those of KServe then.

Every one of these platforms checks who may call, so tokens are off there, and routes by names of its own, so every Host
is allowed unless the configuration has ``allowed_hosts``. Arguments that begin with a program's name are that program's
command line, whatever the platform.
"""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from torchserve_py.base.settings.model_spec import ARCHIVE_SUFFIXES, holds_anything, is_archive_name
from torchserve_py.base.settings.properties import properties_text, read_properties
from torchserve_py.core.archive.contracts import contract_of, known_contracts, telling_files
from torchserve_py.core.archive.manifest import MANIFEST_PATH
from torchserve_py.tools.operator_tools.sagemaker_variables import settings_of

_COMMAND: Final = (sys.executable, "-m", "torchserve_py.cli", "--start", "--foreground", "--no-config-snapshots")
_STORE: Final = "model_store"
_PORTS: Final = 65535
#: The name of the only model where the platform gives it none.
_ONLY_MODEL: Final = "model"
#: What counts on every platform unless the configuration says otherwise.
_DEFAULTS: Final = {"allowed_hosts": "*"}
#: The host in the URL of an address, with what precedes it.
_HOST: Final = re.compile(r"//(?:\[[^\]]*\]|[^:/\[]+)")
_CONFIG_FLAG: Final = "--ts-config="
#: Where the wrapper in KServe's image of TorchServe listens for gRPC.
_GRPC_OF_WRAPPER: Final = "8081"
#: KServe sets it to ``kservev2`` where an InferenceService has the protocol v2 or grpc-v2, otherwise to ``kserve``.
_ENVELOPE_VARIABLE: Final = "TS_SERVICE_ENVELOPE"
#: How the names of weights end.
_WEIGHTS: Final = (".pt", ".pth", ".pt2")
#: What KServe's runtimes are started with.
_KSERVE_FLAGS: Final = ("--model_name=", "--model_dir=", "--http_port=", "--grpc_port=")
#: Paths at which every server answers anyway, so Vertex AI need not have them made.
_HEALTH_PATHS: Final = ("/ping", "/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready")
_PREDICT_PATHS: Final = ("/predictions/", "/v1/models/", "/v2/models/", "/invocations")


@dataclass(frozen=True)
class Start:
    """How to start the server."""

    flags: Sequence[str]  # after those that every container has
    config: Path | None = None  # None: the image's
    overrides: Mapping[str, str] = field(default_factory=dict)  # keys of the configuration that the platform decides
    defaults: Mapping[str, str] = field(default_factory=dict)  # keys that count unless the file has them


def how_to_start(arguments: Sequence[str], environ: Mapping[str, str]) -> Start:
    """Return how to start the server on the platform that the arguments, variables and folders tell.

    Raises ValueError: the platform asks for what this image cannot do.
    """
    if list(arguments[:1]) == ["serve"]:
        if arguments[1:]:
            raise ValueError(f"serve takes no arguments, but it is followed by {' '.join(arguments[1:])!r}")
        return _sagemaker(environ)
    if environ.get("AIP_HTTP_PORT"):
        return _vertex(arguments, environ)
    if environ.get("AZUREML_MODEL_DIR"):
        return _azure(Path(environ["AZUREML_MODEL_DIR"]), arguments)
    named = dict(each.split("=", 1) for each in arguments if each.startswith(_KSERVE_FLAGS))
    flags = [each for each in arguments if not each.startswith(_KSERVE_FLAGS)]
    models = Path(named.get("--model_dir", "/mnt/models"))
    if is_torchserve_runtime(arguments, environ):
        return _kserve(_models_of(arguments, models), {"--grpc_port": _GRPC_OF_WRAPPER, **named}, (), environ)
    if named or models.is_dir():
        return _kserve(models, named, flags, environ)
    return Start(["--model-store", _STORE, *flags])


def _sagemaker(environ: Mapping[str, str]) -> Start:
    address = f"http://[::]:{_port('SAGEMAKER_BIND_TO_PORT', environ)}"
    overrides = {
        "inference_address": address,
        "management_address": address,
        "disable_token_authorization": "true",
        "install_py_dep_per_model": "true",
        "health_route": "/ping",
        **settings_of(environ, _ONLY_MODEL),
    }
    if environ.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true":
        several = {"default_workers_per_model": "1", **overrides, "enable_model_api": "true"}
        return Start(["--model-store", _STORE], None, several, _DEFAULTS)
    models = Path(environ.get("SM_MODEL_DIR", "/opt/ml/model"))
    return Start(list(_models_in(models, _ONLY_MODEL)), None, overrides, _DEFAULTS)


def _vertex(arguments: Sequence[str], environ: Mapping[str, str]) -> Start:
    storage = environ.get("AIP_STORAGE_URI", "")
    if storage:
        raise ValueError(
            f"AIP_STORAGE_URI is {storage!r}, but this image does not download models: copy them into its model_store,"
            " and upload the model without artifacts"
        )
    overrides = {
        "inference_address": f"http://[::]:{_port('AIP_HTTP_PORT', environ)}",
        "disable_token_authorization": "true",
    }
    health, predict = environ.get("AIP_HEALTH_ROUTE"), environ.get("AIP_PREDICT_ROUTE")
    if health and health not in _HEALTH_PATHS:
        overrides["health_route"] = health
    if predict and not predict.startswith(_PREDICT_PATHS):
        overrides["predict_route"] = predict
    flags = ["--model-store", _STORE, *(arguments or ("--models", "all"))]
    return Start(flags, None, overrides, {**_DEFAULTS, "service_envelope": "json"})


def _azure(models: Path, arguments: Sequence[str]) -> Start:
    entries = list(models.iterdir()) if models.is_dir() else []
    if len(entries) == 1 and entries[0].is_dir():  # a registered folder keeps its name below the model's version
        models = entries[0]
    flags = [*_models_in(models, _ONLY_MODEL), *arguments]
    return Start(flags, None, {"disable_token_authorization": "true"}, _DEFAULTS)


def _kserve(models: Path, named: Mapping[str, str], flags: Sequence[str], environ: Mapping[str, str]) -> Start:
    overrides = {
        "inference_address": f"http://[::]:{_port('--http_port', named)}",
        "grpc_inference_address": "::",
        "disable_token_authorization": "true",
    }
    if "--grpc_port" in named:
        overrides["grpc_inference_port"] = _port("--grpc_port", named)
    config, store = models / "config" / "config.properties", models / "model-store"
    if not config.is_file():
        name = named.get("--model_name", "model")
        found = ["--model-store", str(store), "--models", "all"] if store.is_dir() else _models_in(models, name)
        defaults = {**_DEFAULTS, "service_envelope": environ.get(_ENVELOPE_VARIABLE) or "kserve"}
        if _has_only_weights(models):
            defaults["default_service_handler"] = "base_handler"
        return Start([*found, *flags], None, overrides, defaults)
    written = {entry.key: entry.value for entry in read_properties(config)}
    if "model_store" not in written:
        flags = ["--model-store", str(store), *flags]
    if "management_address" in written:  # without tokens, nobody but this container may manage models
        overrides["management_address"] = _HOST.sub("//127.0.0.1", written["management_address"])
    return Start(flags, config, overrides, _DEFAULTS)


def is_torchserve_runtime(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether KServe starts the container as its runtime kserve-torchserve does."""
    return "PROTOCOL_VERSION" in environ and list(arguments[:1]) == ["torchserve"]


def _models_of(arguments: Sequence[str], usual: Path) -> Path:
    """Return the folder that has ``config/config.properties``, as a command line of TorchServe's names it."""
    named = [each.partition("=")[2] for each in arguments if each.startswith(_CONFIG_FLAG)]
    return Path(named[-1]).parent.parent if named else usual


def _port(name: str, given: Mapping[str, str]) -> str:
    """Return the port that a platform gives, 8080 if it gives none. Raises ValueError: it is no port."""
    port = given.get(name) or "8080"
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= _PORTS):
        raise ValueError(f"{name} is {port!r}, it must be a port, a number from 1 to {_PORTS}")
    return port


def _models_in(folder: Path, name: str) -> Iterator[str]:
    """Yield the flags for a folder with archives or folders of models, or for one that is a model itself.

    Raises ValueError: there is no such folder, or it is empty.
    """
    if not holds_anything(folder):
        raise ValueError(f"{folder} has no model: an archive or the files of one model are to lie there")
    if any(folder.glob("*.mar")):
        yield from ("--model-store", str(folder), "--models", "all")
    elif apart := _models_apart(folder, name):
        yield from ("--model-store", str(folder), "--models", *apart)
    else:
        yield from ("--model-store", _STORE, "--models", f"{name}={folder}")


def _models_apart(folder: Path, name: str) -> list[str]:
    """Return the models in a folder that has nothing but archives and folders; none where it is one model itself.

    An archive alone gets ``name``, all others that of their file or folder.
    """
    entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    models = [each for each in entries if holds_anything(each) or is_archive_name(each.name)]
    if any(each.is_file() and each not in models for each in entries) or (folder / MANIFEST_PATH).is_file():
        return []
    if telling_files(folder) or not models:
        return []
    if len(models) == 1:
        return [f"{name}={models[0].name}"] if models[0].is_file() else []
    return [f"{_name_of(each)}={each.name}" for each in models]


def _name_of(model: Path) -> str:
    """Return a model's name by its archive or folder."""
    suffix = next((each for each in ARCHIVE_SUFFIXES if model.name.lower().endswith(each)), "")
    return re.sub(r"\W", "_", model.name[: len(model.name) - len(suffix)])


def _has_only_weights(folder: Path) -> bool:
    """Whether a folder has the weights of a model, and neither code nor anything else that tells how to run them."""
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    if not any(name.endswith(_WEIGHTS) for name in names) or any(name.endswith(".py") for name in names):
        return False
    return known_contracts()[contract_of([*names, *telling_files(folder)], has_default_handler=True)].handlers


def configuration(start: Start, own: Path) -> str:
    """Return the text of the configuration file: the platform's or the image's (``own``), with what `start` decides."""
    base = start.config or own
    entries = {entry.key: entry.value for entry in read_properties(base)} if base.is_file() else {}
    merged = {**start.defaults, **entries, **start.overrides}
    return properties_text(merged.items())


def main() -> NoReturn:
    """Become the server, or exit with a message if it cannot be started."""
    arguments = sys.argv[1:]
    is_program = arguments and not arguments[0].startswith("-") and arguments[0] != "serve"
    if is_program and not is_torchserve_runtime(arguments, os.environ) and shutil.which(arguments[0]):
        os.execvp(arguments[0], arguments)  # noqa: S606 - the arguments are a command line
    try:
        start = how_to_start(arguments, os.environ)
        text = configuration(start, Path("config.properties"))
        number, path = tempfile.mkstemp(prefix="container-", suffix=".properties")
        with open(number, "w") as file:
            file.write(text)
    except (ValueError, OSError) as error:
        sys.exit(f"The server is not started: {error}.")
    os.execvp(_COMMAND[0], [*_COMMAND, "--ts-config", path, *start.flags])  # noqa: S606 - there is no shell to want


if __name__ == "__main__":
    main()
