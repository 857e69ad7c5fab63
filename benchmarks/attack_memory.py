"""Memory of a server before, during and after each class of attack, as the table in SECURITY.md.

    python -m benchmarks.attack_memory [CLASS …]

One server with its default settings, but without tokens, gets all classes one after the other, so that what one leaves
behind stands in the row of the next. Memory is the resident memory of the server's process in MB; "after" is what it
has once it has been left alone for two of its rounds of giving memory back.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.e2e.running_server import RunningServer

from benchmarks.attack_classes import CLASSES, MB, attacked_models

#: Seconds: the server gives freed memory back every 5.
SETTLING: Final = 11.0


def resident(server: RunningServer) -> int:
    return round(server.server.memory_info().rss / MB)


@contextmanager
def highest(server: RunningServer) -> Iterator[list[int]]:
    """Yield a list whose only number is the highest resident memory so far."""
    seen, done = [resident(server)], threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            seen[0] = max(seen[0], resident(server))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        done.set()
        looking.join()


def main(chosen: list[str]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        RunningServer(attacked_models(Path(folder)), {"drain_timeout": 0}) as server,
    ):
        server.wait_ready()
        server.predict("echo")
        time.sleep(SETTLING)
        print("| attack | before | at most | after |\n|---|---|---|---|")
        for name, attack in CLASSES.items():
            if chosen and not any(word in name for word in chosen):
                continue
            before = resident(server)
            with highest(server) as most:
                attack(server)
            time.sleep(SETTLING)
            print(f"| {name} | {before} | {most[0]} | {resident(server)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
