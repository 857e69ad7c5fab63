"""How many processors a container may use."""

import os
from pathlib import Path

import pytest

from torchserve_py.core.workers.devices import available_processors

ALLOWED = len(os.sched_getaffinity(0))


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, ALLOWED),
        ({"cpu.max": "max 100000\n"}, ALLOWED),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu.max": "100000 100000\n"}, 1),
        ({"cpu.max": "150000 100000\n"}, min(2, ALLOWED)),
        ({"cpu.max": "99900000 100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, ALLOWED),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    ],
)
def test_the_containers_share_counts(tmp_path: Path, files: dict[str, str], processors: int) -> None:
    assert available_processors(write(tmp_path, files)) == processors
