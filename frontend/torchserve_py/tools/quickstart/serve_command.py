"""`torchserve-py serve PATH ...`: serves Python files, folders and archives with defaults for a first minute.

It is the server with its usual settings (config.properties, environment), but for what the user has not set: one
address for all of HTTP, one worker for each model, no token on loopback, and a terminal that shows less.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torchserve_py.base.terminal import tell
from torchserve_py.server_process import become, hold_end_signals

if TYPE_CHECKING:
    from torchserve_py.tools.quickstart.served_path import ServedPath

logger = logging.getLogger(__name__)

#: How long Ctrl-C waits for open requests and sequences.
_DRAIN_SECONDS: Final = 3
#: Minutes: the key of a server that is tried out, or runs in a container, does not expire.
_FOR_EVER: Final = 1e12
_MODULE: Final = "torchserve_py.tools.quickstart.serve_command"


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py serve",
        description="Serve models with defaults, in the foreground. Settings are read from config.properties and the"
        " environment as by the server itself.",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a Python file, or FILE.py:FUNCTION of one with several models; a folder (handler, Truss, MLServer model),"
        " a .mar, a workflow's .war, or a model: .onnx, .joblib, .pkl",
    )
    parser.add_argument("--watch", action="store_true", help="load a model again when its files change")
    parser.add_argument("--host", type=_host, help="host to listen at, 127.0.0.1 by default; any other needs tokens")
    parser.add_argument("--port", type=_number(0, 65535), help="port to listen at, 8080 by default; 0 takes a free one")
    parser.add_argument("--workers", type=_number(1, 1000), default=1, help="workers of each model, 1 by default")
    return parser


def _host(text: str) -> str:
    from torchserve_py.base.settings.addresses import bare_host

    try:
        return bare_host(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text} is to be a number from {least} to {most}")
        return int(text)

    return number


def main(argv: Sequence[str]) -> int:
    """Run the command; this process becomes the server."""
    parser().parse_args(argv)
    become(_MODULE, argv)


def _serve(argv: Sequence[str]) -> int:
    arguments = parser().parse_args(argv)
    folder = Path(tempfile.mkdtemp(prefix="torchserve-py-"))
    try:
        return _serve_from(folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve_from(store: Path, arguments: argparse.Namespace) -> int:
    from torchserve_py.base.settings.log_config import LogConfigError
    from torchserve_py.base.settings.resolution import SettingsError
    from torchserve_py.server import configure_logging, run
    from torchserve_py.tools.quickstart.attendant import Attendant
    from torchserve_py.tools.quickstart.served_path import NoModel, ServedPath
    from torchserve_py.tools.quickstart.terminal_log import show_less

    try:
        paths = [ServedPath.of(path, store) for path in arguments.paths]
        settings, warnings = _settings(arguments, store, paths)
    except (NoModel, SettingsError, OSError) as error:
        tell(error, to_stderr=True)
        return 1
    try:
        configure_logging(settings)
    except LogConfigError as error:
        tell(error, to_stderr=True)
        return 1
    except OSError as error:
        where = "serve from a folder that you may write to, or set LOG_LOCATION and METRICS_LOCATION"
        tell(f"No logs can be written: {error.filename}: {error.strerror}; {where}", to_stderr=True)
        return 1
    if settings.log_config is None:
        show_less(settings.log_format)
    for warning in warnings:
        logger.warning(warning)
    for path in paths:
        if path.runs_code:
            logger.warning(
                "%s is unpickled, which runs code that is in it: serve only files that you trust.", path.path
            )
    if settings.inference_address.is_loopback:  # workers inherit it: answers tell what a function has raised
        from ts.serve_decorator import DEVELOPMENT_VARIABLE

        os.environ[DEVELOPMENT_VARIABLE] = "1"
    if arguments.watch:  # what is compiled may be older than a change of the same second that leaves the size as it is
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    return run(settings, Attendant(paths, settings, watch=arguments.watch).attend)


def _settings(arguments: argparse.Namespace, store: Path, paths: "Sequence[ServedPath]") -> tuple[Any, list[str]]:
    """Return the settings, and what the user should know of them. Raises SettingsError: they are wrong."""
    from torchserve_py.base.settings.addresses import Address
    from torchserve_py.base.settings.flags import parse_flags
    from torchserve_py.base.settings.resolution import Resolution
    from torchserve_py.base.settings.table import DEFAULT_ORIGIN, Effective
    from torchserve_py.ops.keys.keys_settings import KEY_SETTINGS

    resolution = Resolution(parse_flags(["--ncs", "--model-store", str(store)]), os.environ, Path.cwd())
    resolution.settings()  # raises what is wrong
    effective = resolution.effective

    address: Address = effective["inference_address"].value
    if arguments.host is not None or arguments.port is not None:
        port = address.port if arguments.port is None else arguments.port
        address = Address("http", arguments.host or address.host, port)
        effective["inference_address"] = Effective(address, "serve")
    is_local = address.is_loopback
    defaults = {
        "management_address": address if is_local else Address("http", "127.0.0.1", 0),
        "metrics_address": address,
        "grpc_inference_address": address.host or "127.0.0.1",
        "grpc_inference_port": 0,
        "grpc_management_port": 0,
        "disable_token_authorization": is_local and not any(effective[name].value for name in KEY_SETTINGS),
        "token_expiration_min": _FOR_EVER,
        "default_workers_per_model": arguments.workers,
        "metrics_mode": "prometheus",
        "drain_timeout": _DRAIN_SECONDS,
    }
    for name, value in defaults.items():
        if effective[name].origin == DEFAULT_ORIGIN:
            effective[name] = Effective(value, "serve")
    models = tuple(spec for path in paths if not path.is_workflow for spec in path.specs())
    effective["load_models"] = Effective(models, "serve")
    workflows = tuple(path.spec.location for path in paths if path.is_workflow)
    if workflows:
        effective["load_workflows"] = Effective(workflows, "serve")
        effective["workflow_store"] = Effective(store, "serve")
    return resolution.settings(), resolution.warnings


if __name__ == "__main__":
    hold_end_signals()
    sys.exit(_serve(sys.argv[1:]))
