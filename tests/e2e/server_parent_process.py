"""The process whose children become servers (`server_parent`), with no more threads than one.

It gets a socket for orders: each is a server's arguments, folder and variables as JSON, with the file for what it
prints and a socket. On that it says the number of the process, and the exit status once that has ended.
"""

import contextlib
import gc
import itertools
import json
import os
import secrets
import select
import signal
import socket
import sys
import uuid
from pathlib import Path
from typing import Final, NoReturn

from torchserve_py import server
from torchserve_py.core.jobs import call

#: The most bytes of an order.
_MOST_BYTES: Final = 1 << 20


def _become(argv: list[str], folder: str, variables: dict[str, str], output: int) -> NoReturn:
    """Go on as a server, as a process does that has just been started."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[1:] = argv
    # Of what the server computes as it is imported, these differ from server to server.
    call._ID_PREFIX, call._numbers = str(uuid.uuid4())[:-12], itertools.count(secrets.randbits(40))  # type: ignore[misc]
    sys.exit(server.main())


def serve_orders(orders: socket.socket) -> None:
    running: dict[int, socket.socket] = {}
    ended, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([orders, ended], [], [])
        if ended in ready:
            os.read(ended, 1_000)
            _tell_ended(running)
        if orders in ready:
            order, descriptors, _, _ = socket.recv_fds(orders, _MOST_BYTES, 2)
            if not order:  # the tests are over
                return
            output, told = descriptors
            if not (pid := os.fork()):
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for descriptor in (ended, wake, told):
                    os.close(descriptor)
                for each in (orders, *running.values()):
                    each.close()
                _become(*json.loads(order), output)
            os.close(output)
            running[pid] = socket.socket(fileno=told)
            running[pid].send(str(pid).encode())


def _tell_ended(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as told, contextlib.suppress(OSError):  # perhaps nobody waits for it any more
            told.send(str(os.waitstatus_to_exitcode(status)).encode())


if __name__ == "__main__":
    server._import_endpoints()
    gc.freeze()  # as in a server
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a thread would be missing in the children"
    serve_orders(socket.socket(fileno=int(sys.argv[1])))
