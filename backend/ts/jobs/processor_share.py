"""How many threads libraries that compute use: ``threads`` of model-config.yaml, else the share of the processors.

OMP_NUM_THREADS, if the user has set it, comes before both.

Each of them takes all processors by default, in every worker: two workers on two processors then wait for each other's
threads, which costs small models nine tenths of their speed. So does another program on these processors, since a
thread of OpenMP that waits for the others keeps its processor busy for milliseconds; in workers it soon sleeps.
"""

import os
import sys
from typing import Final

#: What a user sets to decide; then nothing is set here.
_DECIDES: Final = "OMP_NUM_THREADS"
#: What OpenMP (and with it PyTorch), MKL, OpenBLAS and numexpr read when they are loaded.
_VARIABLES: Final = (_DECIDES, "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
#: How often a thread of GNU's OpenMP, which PyTorch brings, looks for work before it sleeps; 300,000 times by default.
#: This is its own number where it has more threads than processors.
_SPINS: Final = ("GOMP_SPINCOUNT", "1000")
#: What a user sets to decide that.
_DECIDES_SPINS: Final = "OMP_WAIT_POLICY"


def let_waiting_threads_sleep() -> None:
    """Have threads that wait leave their processor to others soon; call this before any library is imported."""
    if _DECIDES_SPINS not in os.environ:
        os.environ.setdefault(*_SPINS)


def use_processors(count: int) -> None:
    """Have libraries use so many threads; call this before the model's code imports any."""
    let_waiting_threads_sleep()
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
