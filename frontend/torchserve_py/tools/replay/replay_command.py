"""`torchserve-py replay`: sends the requests of a journal to another version of their model, and says what differs."""

import argparse
import asyncio
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import orjson

from torchserve_py.base.settings.server_settings import KEY_VARIABLE
from torchserve_py.base.terminal import tell, visible
from torchserve_py.tools.journal.read_journal import JournalReader, JournalUnreadable
from torchserve_py.tools.journal.sealed_lines import KeyUnusable, key_in
from torchserve_py.tools.replay.grpc_sender import PLAIN, TLS
from torchserve_py.tools.replay.replay import Refused, Replay, ReplayPlan, ServerGone
from torchserve_py.tools.replay.replay_report import ReplayReport
from torchserve_py.versions.traffic.answer_comparison import Comparison

_DIFFERS: Final = 1
_FAILED: Final = 2
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
        type=_url(PLAIN, TLS),
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
    at_once = given.at_once or (1 if given.speed is None else _MANY)
    comparison = Comparison(given.tolerance, given.ignore)
    key = os.environ.get(KEY_VARIABLE)
    grpc = given.grpc or f"{PLAIN}{urlsplit(given.server).hostname}:{_GRPC_PORT}"
    plan = ReplayPlan(given.server, grpc, models, given.speed, at_once, given.timeout, key, comparison)
    try:
        journal = JournalReader(given.journal, None if given.key_file is None else key_in(given.key_file))
        try:
            _check_holds(journal, models)
            replay = Replay(plan, journal)
            return _told(replay.report, _stopped(replay), as_json=given.json)
        finally:
            journal.close()
    except (JournalUnreadable, KeyUnusable, Refused) as error:
        tell(f"torchserve-py replay: {visible(error)}", to_stderr=True)
        return _FAILED


def _check_holds(journal: JournalReader, models: Iterable[str]) -> None:
    """Check that a journal has records of these models. Raises JournalUnreadable."""
    if not journal.places:
        lost = journal.damaged + journal.incomplete
        raise JournalUnreadable(f"There is no record in the journal; {lost} of its lines are none.")
    there = ", ".join(sorted(journal.models))
    for name in models:
        if name not in journal.models:
            raise JournalUnreadable(f"The journal has no request to {name!r}; it has requests to {there}.")


def _stopped(replay: Replay) -> str:
    """Run a replay; return why it has stopped before its end, empty if it has not. Raises as `Replay.run`."""
    try:
        asyncio.run(replay.run())
    except ServerGone as gone:
        return str(gone)
    except KeyboardInterrupt:
        return "it was interrupted"
    return "" if replay.report.replayed else "no request could be replayed"


def _told(report: ReplayReport, stopped: str, *, as_json: bool) -> int:
    """Print what was found; return the exit status."""
    if report.replayed or not stopped:
        tell(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2).decode() if as_json else report.as_text())
    if stopped:
        tell(f"torchserve-py replay: {visible(stopped)}", to_stderr=True)
        return _FAILED
    return _DIFFERS if report.differing else 0
