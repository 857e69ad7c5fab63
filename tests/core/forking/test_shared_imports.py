"""What is imported once for the workers of many models, found out from a model's files."""

from pathlib import Path

import pytest

from torchserve_py.core.forking.forking_launcher import shared_imports

pytestmark = pytest.mark.torch
TORCH = ("torch", "ts.torch_handler.base_handler")


@pytest.mark.parametrize(
    ("source", "imports"),
    [
        ("import torch", TORCH),
        ("from torch.nn import Linear", TORCH),
        ("def load():\n    import json, torch\n", TORCH),
        ("from ts.torch_handler.vision_handler import VisionHandler", TORCH),
        ('"""A handler for torchserve, without torch."""\n# torch\nimport json', ()),
        ("from torchserve_tools import torchless", ()),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", ()),
        ('import os\nos.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "")\nimport torch', ()),
        ("import os\ntoken = os.environ['HF_TOKEN']\nimport torch", TORCH),
    ],
)
def test_it_is_torch_where_a_file_imports_it_and_no_variable_that_torch_reads(
    tmp_path: Path, source: str, imports: tuple[str, ...]
) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "network.py").write_text(source)
    assert shared_imports(tmp_path, "handler.py:handle") == imports


def test_the_built_in_handlers_use_torch(tmp_path: Path) -> None:
    assert shared_imports(tmp_path, "image_classifier") == TORCH
    assert shared_imports(tmp_path, "image_classifier.py") == ()


def test_a_file_that_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken.py").symlink_to(tmp_path / "missing")
    assert shared_imports(tmp_path, "handler") == ()
