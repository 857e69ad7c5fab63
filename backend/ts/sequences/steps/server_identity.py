"""The identity of a server, from which other processes find out whether that server still runs.

Servers that share state need to know at once that one of them has ended. That is possible for a process on the same
machine (and in the same container); any other process is known to have ended only by its silence.
"""

import os
import secrets
from pathlib import Path

from ts.protocol.process_start import started


def server_identity() -> str:
    """Return the identity of this process: where it runs, its process id and when it was started."""
    since = started(os.getpid())
    if since is None:  # no /proc: unique, but no process can check it
        return f"{secrets.token_hex(16)}/{os.getpid()}/0"
    return f"{_place()}/{os.getpid()}/{since}"


def is_gone(identity: str) -> bool:
    """Return whether the server is known to have ended; False if this process cannot see it."""
    place, _, process = identity.partition("/")
    pid, _, since = process.partition("/")
    if not pid.isdecimal() or place != _place():
        return False
    return started(int(pid)) != since


def machine() -> str:
    """Return the boot of this machine; empty without /proc."""
    return _place().partition(":")[0]


def _place() -> str:
    """Return the boot of the machine and the namespace of process ids; empty without /proc."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
