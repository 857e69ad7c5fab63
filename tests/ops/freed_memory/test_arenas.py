"""The server's threads share one arena of the C library's allocator, so that freed memory can be given back."""

import ctypes
import subprocess
import sys

import pytest

#: Threads allocate while others hold the arenas that there are; then the program prints what arenas there are.
SCRIPT = """
import ctypes, sys, threading
from torchserve_py.ops.freed_memory.freed_memory import share_one_arena
if sys.argv[1:] == ["shared"]:
    share_one_arena()
libc, together = ctypes.CDLL(None), threading.Barrier(4)
libc.malloc.restype, libc.fdopen.restype = ctypes.c_void_p, ctypes.c_void_p
def allocate():
    together.wait()
    libc.malloc(100_000)
threads = [threading.Thread(target=allocate) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="this C library has no arenas")
@pytest.mark.parametrize("how", ["", "shared"])
def test_threads_share_one_arena(how: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, how],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ran.stdout.count("<heap ") == 1) is (how == "shared")
