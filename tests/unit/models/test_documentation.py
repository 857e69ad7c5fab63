"""docs/model-config.md names every key of the schema, and none that does not exist."""

import re
from pathlib import Path

from torchserve_py.models.cache_config import CacheConfig
from torchserve_py.models.contract_limits import CODE_KEYS
from torchserve_py.schemas.document import table
from torchserve_py.schemas.model_config import ModelConfigFile, TorchrunConfig

DOCS = Path(__file__).parents[3] / "docs" / "model-config.md"


def test_every_key_has_a_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| .* \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted(
        key for schema in (ModelConfigFile, TorchrunConfig, CacheConfig) for key in schema.key_names()
    )


def test_the_rows_are_those_of_the_schema() -> None:
    lines = DOCS.read_text(encoding="utf-8").splitlines()
    rows = [*table(ModelConfigFile), *table(TorchrunConfig, defaults=False)]
    assert not [row for row in rows if row not in lines]


def test_the_keys_of_handlers_are_named() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Keys that only handlers read")[2]
    assert set(re.findall(r"`(\w+)`", section)) == CODE_KEYS
