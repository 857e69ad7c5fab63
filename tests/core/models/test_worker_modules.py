"""The modules whose names workers get."""

from importlib.util import find_spec

import pytest

from torchserve_py.core.models.worker_modules import FORMS, ROW_READERS, RUNTIMES, STEPS


@pytest.mark.parametrize("name", sorted({FORMS, STEPS, *RUNTIMES.values(), *ROW_READERS.values()}))
def test_each_module_exists(name: str) -> None:
    assert find_spec(name) is not None
