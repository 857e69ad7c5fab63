"""Programs of Debian's packages that tests start."""

import os
import shutil

import pytest


def need_program(name: str) -> str:
    """Return the path of a program listed in ``.ci/debian-packages``.

    Where the program is missing, the test is skipped; with ``TS_TEST_PROGRAMS=required`` it fails.
    """
    path = shutil.which(name)
    if path is None:
        missing = f"{name} is not installed; .ci/debian-packages names Debian's package"
        if os.environ.get("TS_TEST_PROGRAMS") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return path
