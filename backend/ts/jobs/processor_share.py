"""How many threads libraries that compute use: ``threads`` of model-config.yaml, else the share of the processors.

OMP_NUM_THREADS, if the user has set it, comes before both.

Each of them takes all processors by default, in every worker: two workers on two processors then wait for each other's
threads, which costs small models nine tenths of their speed.
"""

import os
import sys
from typing import Final

#: What a user sets to decide; then nothing is set here.
_DECIDES: Final = "OMP_NUM_THREADS"
#: What OpenMP (and with it PyTorch), MKL, OpenBLAS and numexpr read when they are loaded.
_VARIABLES: Final = (_DECIDES, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def use_processors(count: int) -> None:
    """Have libraries use so many threads; call this before the model's code imports any."""
    if _DECIDES in os.environ:
        return
    for name in _VARIABLES:
        os.environ.setdefault(name, str(count))
    torch = sys.modules.get("torch")
    if torch is not None:  # in a forked worker, whose parent has imported it with all processors
        torch.set_num_threads(count)


def thread_count() -> int:
    """Return how many threads a library is to use that reads no variable; 0, its own default, outside of a worker."""
    given = os.environ.get(_DECIDES, "")
    return int(given) if given.isdecimal() else 0
