"""Keeps this process, and all that it starts, from ever gaining rights: set-user-ID programs give them none."""

import sys
from typing import Final

#: ``PR_SET_NO_NEW_PRIVS`` of <linux/prctl.h>.
_SET_NO_NEW_PRIVILEGES: Final = 38


def gain_no_privileges() -> None:
    """Have the kernel hold this thread, and the processes that it starts, to the rights that they have now.

    Giving rights up, as `ts.core.confinement.confine` does, goes on working. On systems other than Linux nothing
    is done. Raises OSError: the kernel refuses.
    """
    if sys.platform == "linux":
        import ctypes

        if ctypes.CDLL(None, use_errno=True).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
