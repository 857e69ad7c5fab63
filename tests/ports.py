"""Ports for programs that tests start."""

import contextlib
import os
import random
import socket
from typing import Final

#: Linux takes ports from 32,768 on for connections and for port 0, and Ray those up to 20,000 for its workers: they
#: could take a port of a program that is being started.
_ALL_PORTS: Final = range(20_001, 32_000)
#: Processes that test side by side choose from ports of their own: what is down for a moment would find its port taken.
_PROCESSES: Final = 8
_PORTS: Final = _ALL_PORTS[int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _PROCESSES :: _PROCESSES]
#: Not the generator that tests seed: those that run side by side would choose the same ports.
_CHOICE: Final = random.SystemRandom()
#: What was handed out: a program may not have begun to listen yet, or be down for a moment.
_HANDED_OUT: Final[set[int]] = set()


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on now, others each time."""
    ports: list[int] = []
    with contextlib.ExitStack() as stack:
        for port in _CHOICE.sample(sorted(set(_PORTS) - _HANDED_OUT), len(_PORTS) - len(_HANDED_OUT)):
            if len(ports) == count:
                break
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                ports.append(port)
    assert len(ports) == count, f"there are no {count} free ports"
    _HANDED_OUT.update(ports)
    return ports
