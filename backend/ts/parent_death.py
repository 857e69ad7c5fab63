"""Ends this process when the one that started it dies, however it dies."""

from __future__ import annotations

import signal
import sys

#: ``PR_SET_PDEATHSIG`` of <linux/prctl.h>.
_SET_PARENT_DEATH_SIGNAL = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; on systems other than Linux do nothing.

    There the end of the connection has to do, which a process in the middle of an inference sees later.
    """
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
