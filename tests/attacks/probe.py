"""Asks a server every 50 ms whether it is alive, in a process of its own, until standard input ends.

Usage: ``python probe.py URL PID``. Each answer is a line of JSON: the status, the seconds until it came, and for how
many of these the server worked (0 on a system without ``/proc``). The server did not work while it, or this process,
waited for a processor that others had, or while the host of a virtual machine gave its processors to others.
"""

import http.client
import json
import os
import select
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

INTERVAL = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


def waited_for_processor(thread: str) -> float:
    """Return for how many seconds a thread has been ready to run without running; 0 where the system does not tell."""
    try:
        return int(Path("/proc", thread, "schedstat").read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def processor_time(pid: str) -> float:
    """Return how many seconds the threads of a process have run; 0 where the system does not tell."""
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def stolen() -> list[float]:
    """Return for how many seconds the host has kept each processor from this machine; none if that is not known."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return []
    return [int(line.split()[8]) / _TICKS for line in lines if line.startswith("cpu") and line[3].isdigit()]


def main(url: str, pid: str) -> None:
    address = urlsplit(url)
    server = http.client.HTTPConnection(address.hostname or "", address.port, timeout=180)
    threads = (f"{pid}/task/{pid}", "self")
    while not select.select([sys.stdin], [], [], INTERVAL)[0]:
        kept, waits, cpu = stolen(), sum(map(waited_for_processor, threads)), processor_time(pid)
        begun = time.monotonic()
        server.request("GET", "/live")
        answer = server.getresponse()
        answer.read()
        seconds = time.monotonic() - begun
        waits, cpu = sum(map(waited_for_processor, threads)) - waits, processor_time(pid) - cpu
        # The server ran on one processor at a time: the one that was kept longest from it is the most that it lost.
        lost = max((after - before for before, after in zip(kept, stolen(), strict=True)), default=0.0)
        print(json.dumps([answer.status, seconds, max(0.0, min(seconds - waits - lost, cpu))]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
