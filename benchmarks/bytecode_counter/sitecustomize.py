"""Counts the bytecodes that the main thread of this process runs between two SIGUSR2, by function.

Python imports this at its start from a folder of PYTHONPATH; see `benchmarks.bytecodes`. The second signal writes a
list to ``PID.json`` in the folder that ``BYTECODES`` names: file and name of each function, its bytecodes, its calls.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_bytecodes: Counter[CodeType] = Counter()
_calls: Counter[CodeType] = Counter()
_folder = os.environ.get("BYTECODES")


def _count(frame: FrameType, event: str, _: Any) -> Any:
    if event == "opcode":
        _bytecodes[frame.f_code] += 1
    elif event == "call":
        _calls[frame.f_code] += 1
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return _count


def _toggle(_: int, frame: FrameType | None) -> None:
    if sys.gettrace() is None:
        while frame is not None:  # loops that run already, such as that of a worker
            frame.f_trace, frame.f_trace_opcodes, frame.f_trace_lines = _count, True, False
            frame = frame.f_back
        sys.settrace(_count)
        return
    sys.settrace(None)
    counted = [[code.co_filename, code.co_qualname, count, _calls[code]] for code, count in _bytecodes.items()]
    new = Path(_folder or "", f"{os.getpid()}.new")
    new.write_text(json.dumps(counted))
    new.rename(new.with_suffix(".json"))


if _folder:
    signal.signal(signal.SIGUSR2, _toggle)
