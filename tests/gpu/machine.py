"""The device that these tests use: a GPU.

`TS_GPU_TESTS_DEVICE=cpu` lets them use the processor instead, which shows only that they run. Those that mean nothing
there are skipped.
"""

import importlib.util
import os
import shutil
import subprocess
from functools import cache
from typing import Final

ON_CPU: Final = os.environ.get("TS_GPU_TESTS_DEVICE", "cuda") == "cpu"
DEVICE: Final = "cpu" if ON_CPU else "cuda:0"
#: `gpu_id` of a handler.
GPU_ID: Final = None if ON_CPU else 0


@cache
def why_not() -> str | None:
    """Return why tests cannot use a GPU here, None if they can. Imports torch only where the driver knows of a GPU."""
    if ON_CPU:
        return None
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    if shutil.which("nvidia-smi") is None:
        return "no GPU: there is no nvidia-smi, which comes with NVIDIA's driver"
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=180)
    except subprocess.TimeoutExpired:
        return "no GPU: nvidia-smi -L does not answer within 60 s"
    if listed.returncode or "GPU " not in listed.stdout:
        return f"no GPU: nvidia-smi -L says {(listed.stdout or listed.stderr).strip() or 'nothing'}"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} cannot use the GPU (torch.cuda.is_available() is false)"
    return None
