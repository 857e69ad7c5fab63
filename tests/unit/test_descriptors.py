"""The limit on file descriptors goes up to what the system allows, and no further."""

import resource
import subprocess
import sys

import pytest

COUNT = """
import resource
from torchserve_py.server import raise_descriptor_limit
for _ in range(2):
    raise_descriptor_limit()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 700, 700), (700, 700, 700)])
def test_the_soft_limit_becomes_the_hard_one(soft: int, hard: int, then: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={"PYTHONPATH": ":".join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split() == [str(then)] * 2
