"""`torchserve-py replay`: sends the requests of a journal to another version of their model, and says what differs."""

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from torchserve_py.base.settings.server_settings import KEY_VARIABLE
from torchserve_py.tools.replay.senders import GRPC, GRPC_TLS

#: How many requests may be without an answer while they are sent at their recorded times.
_MANY: Final = 256
_GRPC_PORT: Final = 7070
_EPILOG: Final = f"""\
The exit status is 0 if all answers are as recorded, 1 if one differs, 2 if the replay is not possible, not to its end,
or of no request.
A server that asks for a key gets the one in the variable {KEY_VARIABLE}."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="torchserve-py replay",
        description="Send the requests of a journal to a running server again, and say which answers differ.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("journal", metavar="JOURNAL", nargs="+", type=Path, help="files or folders of a journal")
    parser.add_argument(
        "--model",
        metavar="NAME[=VERSION]",
        action="append",
        default=[],
        help="replay the requests to this model, on this version or the default one (otherwise: all, the default ones)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        type=_url("http://", "https://"),
        default="http://127.0.0.1:8080",
        help="the inference API (%(default)s)",
    )
    parser.add_argument(
        "--grpc",
        metavar="URL",
        type=_url(GRPC, GRPC_TLS),
        help=f"its gRPC port, as the server logs it (grpc://, port {_GRPC_PORT}, on the host of --server)",
    )
    parser.add_argument(
        "--speed",
        metavar="X",
        type=_number("a number above 0", lambda value: value > 0),
        help="send at the recorded times, X times as fast (otherwise: one after another)",
    )
    parser.add_argument(
        "--at-once", metavar="N", type=_count, help=f"how many may be without an answer (1; with --speed {_MANY})"
    )
    _add_what_may_differ(parser)
    parser.add_argument("--key-file", metavar="FILE", type=Path, help="the key of an encrypted journal")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=_number("a number above 0", lambda value: value > 0),
        default=120.0,
        help="seconds that an answer may take (%(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser


def _add_what_may_differ(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tolerance",
        metavar="T",
        type=_number("a number from 0", lambda value: value >= 0),
        default=0.0,
        help="by how much numbers may differ, of 1 or of the larger one (0)",
    )
    parser.add_argument(
        "--ignore",
        metavar="MEMBER",
        action="append",
        default=[],
        help="a member of JSON answers that may differ, such as usage.seconds",
    )


def _number(what: str, is_right: Callable[[float], bool]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and is_right(value)):
            raise argparse.ArgumentTypeError(f"{text!r} must be {what}")
        return value

    return read


def _url(*schemes: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not text.startswith(schemes) or not urlsplit(text).hostname:
            raise argparse.ArgumentTypeError(f"{text!r} must be a URL that begins with {' or '.join(schemes)}")
        return text.rstrip("/")

    return read


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) <= 10_000):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from 1 to 10000")
    return int(text)


def main(argv: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    arguments = parser()
    given = arguments.parse_args(argv)
    models = {}
    for each in given.model:
        name, separator, version = each.partition("=")
        if not name or (separator and not version):
            arguments.error(f"--model {each}: it must be NAME or NAME=VERSION")
        models[name] = version or None
    given.at_once = given.at_once or (1 if given.speed is None else _MANY)
    given.grpc = given.grpc or f"{GRPC}{urlsplit(given.server).hostname}:{_GRPC_PORT}"
    try:
        from torchserve_py.tools.replay.run_replay import run_replay
    except ModuleNotFoundError as error:
        arguments.exit(2, f"torchserve-py replay needs a package ({error}): pip install 'torchserve-py[replay]'\n")
    return run_replay(given, models)
