"""In the server process only: SIGUSR1 writes how many asyncio tasks there are to the file that SOAK_TASKS names."""

import os
import signal
import sys


def _count(*_: object) -> None:
    import asyncio

    with open(os.environ["SOAK_TASKS"], "w") as file:
        file.write(f"{len(asyncio.all_tasks())}\n")


if "torchserve_py.server" in sys.orig_argv and "SOAK_TASKS" in os.environ:
    signal.signal(signal.SIGUSR1, _count)
