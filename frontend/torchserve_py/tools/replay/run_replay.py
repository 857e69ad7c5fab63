"""What `torchserve-py replay` does once its arguments are read. It needs aiohttp, which nothing else does."""

import argparse
import asyncio
import os
from collections.abc import Iterable, Mapping
from typing import Final

import orjson

from torchserve_py.base.settings.server_settings import KEY_VARIABLE
from torchserve_py.base.terminal import tell, visible
from torchserve_py.tools.journal.read_journal import JournalReader, JournalUnreadable
from torchserve_py.tools.journal.sealed_lines import KeyUnusable, key_in
from torchserve_py.tools.replay.replay import Refused, Replay, ReplayPlan, ServerGone
from torchserve_py.tools.replay.replay_report import ReplayReport
from torchserve_py.versions.traffic.answer_comparison import Comparison

_DIFFERS: Final = 1
_FAILED: Final = 2


def run_replay(given: argparse.Namespace, models: Mapping[str, str | None]) -> int:
    """Replay a journal as the arguments say, and print the report; return the exit status."""
    comparison = Comparison(given.tolerance, given.ignore)
    key = os.environ.get(KEY_VARIABLE)
    plan = ReplayPlan(given.server, given.grpc, models, given.speed, given.at_once, given.timeout, key, comparison)
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
