"""docs/model-config.md names every key of the schema, and none that does not exist."""

import re
from pathlib import Path

from torchserve_py.models.cache_config import CacheConfig
from torchserve_py.models.config import ModelConfigFile, TorchrunConfig
from torchserve_py.models.contract_limits import CODE_KEYS

DOCS = Path(__file__).parents[3] / "docs" / "model-config.md"


def test_every_key_has_a_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(
        key for schema in (ModelConfigFile, TorchrunConfig, CacheConfig) for key in schema.key_names()
    )


def test_the_keys_of_handlers_are_named() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Keys that only handlers read")[2]
    assert set(re.findall(r"`(\w+)`", section)) == CODE_KEYS
