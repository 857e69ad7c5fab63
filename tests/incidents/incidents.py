"""Runs the incidents and prints a table: detected after, healed after, lost.

Each function of `INCIDENTS` is one incident on real servers; add one by writing it in a module of this folder and
naming it there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.incidents.of_clients import (
    batches_with_a_request_that_kills,
    connections_taken,
    drain_with_keep_alive_clients,
    requests_that_kill_workers,
)
from tests.incidents.of_fleets import fleet_server_cannot_follow
from tests.incidents.of_operators import (
    certificate_is_renewed,
    log_files_are_rotated,
    model_cannot_be_loaded,
    version_without_workers_becomes_default,
)
from tests.incidents.of_stores import (
    disk_of_the_journal_is_full,
    redis_evicts,
    redis_fails_over,
    redis_lags,
    redis_stops,
    snapshots_cannot_be_written,
)
from tests.incidents.scenes import Scene

INCIDENTS: Final[tuple[Callable[[Scene], None], ...]] = (
    connections_taken,
    requests_that_kill_workers,
    batches_with_a_request_that_kills,
    drain_with_keep_alive_clients,
    certificate_is_renewed,
    log_files_are_rotated,
    model_cannot_be_loaded,
    version_without_workers_becomes_default,
    redis_stops,
    redis_lags,
    redis_fails_over,
    redis_evicts,
    snapshots_cannot_be_written,
    disk_of_the_journal_is_full,
    fleet_server_cannot_follow,
)


def run(incident: Callable[[Scene], None]) -> Scene:
    """Run one incident in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="incident-") as directory:
        scene = Scene(Path(directory))
        incident(scene)
        return scene


def row(name: str, scene: Scene) -> str:
    """Return a line of the table."""

    def seconds(value: float | None) -> str:
        return "never" if value is None else f"{value:.1f} s"

    problems = "" if scene.has_passed else "; ".join(scene.problems)
    return f"{name:42} {seconds(scene.detected):>10} {seconds(scene.healed):>10} {scene.lost:>6}  {problems}"


def main(arguments: Sequence[str]) -> int:
    """Run the incidents that are named, or all; return the exit status."""
    by_name = {each.__name__: each for each in INCIDENTS}
    parser = argparse.ArgumentParser(prog="scripts/incidents", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an incident")
    parser.add_argument("--list", action="store_true", help="print the incidents and end")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in by_name]:
        parser.error(f"there is no incident {unknown[0]}; --list prints them")
    if options.list:
        for name, each in by_name.items():
            print(f"{name:42} {(each.__doc__ or '').splitlines()[0]}")
        return 0
    print(f"{'incident':42} {'detected':>10} {'healed':>10} {'lost':>6}", flush=True)
    failed = 0
    for name in options.names or by_name:
        scene = run(by_name[name])
        failed += not scene.has_passed
        print(row(name, scene), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
