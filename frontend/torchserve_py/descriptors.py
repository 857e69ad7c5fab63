"""How many file descriptors the server may have: a connection each, and some for every worker."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

#: Above this a limit serves nobody, and what walks over all descriptors there may be takes long.
_ENOUGH = 1 << 20


def raise_descriptor_limit() -> int:
    """Raise the soft limit, which many systems leave at 1024, to the hard one; return what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:  # macOS has a further limit of the kernel's own
        logger.warning("The limit of %d file descriptors cannot be raised to %d: %s", soft, wanted, error)
        return soft
    return wanted
