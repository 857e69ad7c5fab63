"""The limit of file descriptors: each connection needs one, and each worker some."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

#: A higher limit has no use, and slows down code that loops over all possible descriptors.
_ENOUGH = 1 << 20


def raise_descriptor_limit() -> int:
    """Raise the soft limit, which many systems leave at 1024, to the hard one; return the limit now in effect."""
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
