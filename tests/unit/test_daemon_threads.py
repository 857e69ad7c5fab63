"""Blocking work in threads that do not keep the process alive."""

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import wait

import pytest

from torchserve_py.base.daemon_threads import DaemonThreads

#: A server's event loop whose thread reads from a disk that never answers.
HANGS = """
import asyncio, sys, threading
import uvloop
from torchserve_py.base.daemon_threads import DaemonThreads

async def main():
    asyncio.get_running_loop().set_default_executor(DaemonThreads(end_limit=0.2))
    reading = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
    print(await asyncio.to_thread(lambda: "another thread goes on"))

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""


def test_work_is_done_and_its_threads_are_used_again() -> None:
    threads = DaemonThreads(most=4)
    results = [threads.submit(pow, 2, number).result(10) for number in range(50)]
    assert results == [2**number for number in range(50)]
    assert len(threads._daemons) <= 2  # one may not be back yet when the next work comes
    with pytest.raises(ZeroDivisionError):
        threads.submit(lambda: 1 / 0).result(10)
    threads.shutdown()
    with pytest.raises(RuntimeError):
        threads.submit(pow, 2, 2)


def test_no_more_threads_than_allowed() -> None:
    threads, gate = DaemonThreads(most=3), threading.Event()
    waiting = [threads.submit(gate.wait, 10) for _ in range(10)]
    assert len(threads._daemons) == 3
    gate.set()
    assert all(each.result(10) for each in waiting)
    threads.shutdown()
    assert not any(each.is_alive() for each in threads._daemons)


def test_the_end_waits_for_work_that_ends_and_not_for_work_that_hangs() -> None:
    threads, gate = DaemonThreads(end_limit=0.1), threading.Event()
    hung = threads.submit(gate.wait)
    began = time.monotonic()
    threads.shutdown()
    assert time.monotonic() - began < 5
    assert not hung.done()
    gate.set()
    wait([hung], 10)
    queued = DaemonThreads(most=1, end_limit=0.0)
    gate.clear()
    first, second = queued.submit(gate.wait), queued.submit(gate.wait)
    queued.shutdown(cancel_futures=True)
    gate.set()
    assert first.result(10)
    assert second.cancelled()


async def test_to_thread_uses_them() -> None:
    asyncio.get_running_loop().set_default_executor(DaemonThreads())
    assert await asyncio.to_thread(lambda: threading.current_thread().daemon)


def test_a_process_ends_although_a_thread_hangs() -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=180, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "another thread goes on\n", "")
