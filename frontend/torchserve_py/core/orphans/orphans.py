"""Orphans: processes that code of models has left behind, which would outlive the server and its workers.

A process that forks twice leaves its process group and its parent. On Linux the kernel gives such orphans to the server
(`prctl(2)`, PR_SET_CHILD_SUBREAPER), which reaps those that end and kills those that are left when it ends itself. If
the server is killed, they live on, unless it was process 1 of a container or a service manager ends its cgroup.
"""

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import psutil

logger = logging.getLogger(__name__)

#: ``PR_SET_CHILD_SUBREAPER`` of <linux/prctl.h>.
_SET_CHILD_SUBREAPER: Final = 36
#: An ended child that nobody has waited for in such a time (seconds) is an orphan, and no child of the server's own.
_REAP_INTERVAL: Final = 5.0
#: How long it may take until all orphans are gone (seconds), and how often to look.
_END_LIMIT: Final = 5.0
_LOOK_AGAIN: Final = 0.02


@contextmanager
def orphans_adopted() -> Iterator[None]:
    """Be the parent of orphans meanwhile, and kill them all at the end; on systems other than Linux do nothing.

    Children that this process has at the beginning, those of the program that has become the server, are spared.
    """
    if sys.platform != "linux":
        yield
        return
    spared = _children()
    if ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        reason = os.strerror(ctypes.get_errno())
        logger.warning("Processes that models leave behind may outlive the server: PR_SET_CHILD_SUBREAPER: %s", reason)
    try:
        yield
    finally:
        _end_all(spared)


async def reap_orphans() -> None:
    """Reap orphans that have ended, for ever. Runs in the event loop that reaps the server's own children."""
    seen = set[int]()
    while True:
        await asyncio.sleep(_REAP_INTERVAL)
        for _ in range(2):  # let the loop reap its own first, even if the whole process has just been frozen
            await asyncio.sleep(0)
        ended = {each.pid for each in _children() if _has_ended(each)} if _child_has_ended() else set[int]()
        for pid in ended & seen:
            _reap(pid)
        seen = ended - seen


def _end_all(spared: frozenset["psutil.Process"]) -> None:
    """Kill and reap children until there are none: the children of each one that is killed are the next ones."""
    end, told = time.monotonic() + _END_LIMIT, set["psutil.Process"]()
    while left := _children() - spared:
        for each in left:
            if each not in told and not _has_ended(each):
                told.add(each)
                logger.info("Process %d, which a worker has left behind, is killed", each.pid)
                os.kill(each.pid, signal.SIGKILL)  # its number cannot be another's before it is reaped
            _reap(each.pid)
        if time.monotonic() > end:
            logger.warning("Processes that workers have left behind do not end: %s", sorted(each.pid for each in left))
            return
        time.sleep(_LOOK_AGAIN)


def _children() -> frozenset["psutil.Process"]:
    if _child_has_ended() is None:
        return frozenset()
    import psutil  # it takes 40 ms, which the start of most servers need not wait for

    return frozenset(psutil.Process().children())


def _child_has_ended() -> bool | None:
    """Return whether a child has ended that nobody has waited for yet; None if there are no children."""
    try:
        return os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return None


def _has_ended(process: "psutil.Process") -> bool:
    import psutil

    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _reap(pid: int) -> None:
    with suppress(ChildProcessError):  # somebody has waited for it after all
        os.waitpid(pid, os.WNOHANG)
