"""docs/model-config.md, docs/gpu.md and docs/scaling.md name every key of the schemas, and no others."""

import re
from pathlib import Path

from torchserve_py.contracts.warm_up.warm_up_keys import WarmupRequest
from torchserve_py.core.plans.contradictions import code_keys
from torchserve_py.core.torchrun.torchrun_keys import TorchrunConfig
from torchserve_py.fleet.scaling.scaling_keys import ScalingConfig
from torchserve_py.plugins import model_config_keys
from torchserve_py.sequences.steps.cache_config import CacheConfig
from torchserve_py.tools.operator_tools.json_schemas import model_config_file
from torchserve_py.tools.operator_tools.print_config import table

DOCS = Path(__file__).parents[3] / "docs" / "model-config.md"


def test_the_tables_have_the_rows_of_the_schemas_and_no_others() -> None:
    rows = re.findall(r"^\| `[\w-]+` \| .* \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    tables = [*table(model_config_file()), *table(TorchrunConfig, defaults=False), *table(CacheConfig)]
    assert sorted(rows) == sorted(tables)


def test_the_table_of_warm_ups_has_the_rows_of_its_schema() -> None:
    text = DOCS.with_name("gpu.md").read_text(encoding="utf-8")
    section = text.partition("## Warm-up")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `\w+` \| .* \|$", section, re.MULTILINE) == list(table(WarmupRequest))


def test_the_table_of_scaling_has_the_rows_of_its_schema() -> None:
    text = DOCS.with_name("scaling.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `\w+` \| .* \|$", text, re.MULTILINE) == list(table(ScalingConfig))


def test_the_keys_of_handlers_are_named() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("## Keys that only handlers read")[2]
    of_plugins = {name for schema in model_config_keys() for name in schema.key_names()} - {"handler"}  # which is both
    assert set(re.findall(r"`(\w+)`", section)) == code_keys() - of_plugins
