"""Sources that several threads read at the same time."""

import gc
import threading
import time

from torchserve_py.base.python_source import parse

SOURCE = "def f(a, b=[1, (2, 3)]):\n    return {'a': [a for a in b if (a + 1) * 2 > b[0]]}\n" * 20


def switch(phase: str, info: dict[str, int]) -> None:
    """Let other threads run, as whatever the garbage collector calls may do, in the middle of a tree."""
    time.sleep(0)


def test_threads_that_read_sources_do_not_disturb_each_other() -> None:
    """Python 3.11 raised SystemError."""
    errors: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(3):
                parse(SOURCE)
        except BaseException as error:
            errors.append(error)

    threshold = gc.get_threshold()
    gc.callbacks.append(switch)
    gc.set_threshold(200)
    try:
        threads = [threading.Thread(target=read) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(switch)
    assert errors == []
