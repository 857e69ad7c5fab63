"""In the server process only: the collector is off, and SIGUSR1 tells where bodies of requests still are.

A body is what holds `MARK` near its beginning. The answer is JSON in the file that `BODIES` names: bodies that
something alive holds, and bodies that only a reference cycle holds, each with what leads to it; and how many objects of
each of the server's own types have waited for the collector.
"""

import gc
import json
import os
import signal
import sys
import weakref
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

MARK = b"the body of a request"
NEAR = 4096
LARGE = 50_000


def _is_body(value: Any) -> bool:
    kind = type(value).__name__
    if type(value) in weakref.ProxyTypes:  # what it stands for may be gone
        return False
    if kind.endswith("Request") and hasattr(value, "SerializeToString"):
        value = value.SerializeToString()
    if isinstance(value, str):
        return len(value) >= LARGE and MARK.decode() in value[:NEAR]
    if isinstance(value, memoryview):
        value = bytes(value)
    return isinstance(value, bytes | bytearray) and len(value) >= LARGE and MARK in value[:NEAR]


def _name(value: Any) -> str:
    if type(value) is FrameType:
        return f"the frame of {value.f_code.co_qualname}"
    return type(value).__qualname__


def _holders(objects: Iterable[Any]) -> list[str]:
    holders = [each for each in objects if any(_is_body(value) for value in gc.get_referents(each))]
    return [f"{_name(each)} of {sorted(set(map(_name, gc.get_referrers(each))))}" for each in holders]


def _tell(*_: object) -> None:
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    in_cycles = _holders(gc.garbage)
    garbage = Counter(_name(each) for each in gc.garbage if type(each).__module__.startswith("torchserve_py"))
    gc.garbage.clear()
    gc.collect()
    alive = _holders(gc.get_objects())
    new = Path(f"{os.environ['BODIES']}.new")
    new.write_text(json.dumps({"alive": alive, "in cycles": in_cycles, "garbage": garbage}))
    new.rename(os.environ["BODIES"])


if "torchserve_py.server" in sys.orig_argv and "BODIES" in os.environ:
    gc.disable()
    signal.signal(signal.SIGUSR1, _tell)
