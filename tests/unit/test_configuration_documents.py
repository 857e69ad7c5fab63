"""docs/configuration.md and configs/config.properties say what the table of settings says."""

import re
from pathlib import Path

import pytest

from torchserve_py.base.settings.flags import parse_flags
from torchserve_py.base.settings.properties import parse_properties, written
from torchserve_py.base.settings.resolution import Resolution
from torchserve_py.base.settings.server_settings import server_settings, sources
from torchserve_py.base.settings.table import INTERNAL_KEYS, JVM_KEYS
from torchserve_py.tools.operator_tools.print_config import documented

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "configuration.md").read_text()
EXAMPLE = (ROOT / "configs" / "config.properties").read_text()
DEFAULTS = {
    name: field.default for name, field in server_settings().model_fields.items() if field.default not in (None, {})
}
DEFAULTS.pop("model_store")  # mandatory


@pytest.mark.parametrize("name", sources())
def test_the_document_has_the_row_of_every_setting(name):
    assert documented(name) in DOCUMENT.splitlines()


def test_the_document_has_no_row_of_anything_else():
    assert set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE)) == set(sources())


def test_the_document_names_the_keys_without_effect():
    section = DOCUMENT.split("\n## Keys without effect\n")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    assert named == {*JVM_KEYS, *INTERNAL_KEYS}


def test_the_example_is_valid_as_it_is(tmp_path):
    (tmp_path / "model_store").mkdir()
    (tmp_path / "config.properties").write_text(EXAMPLE)
    resolution = Resolution(parse_flags([]), {}, tmp_path)
    assert not resolution.errors
    assert not resolution.warnings


def test_the_example_shows_every_key_with_its_default():
    shown = {
        entry.key: entry.value for entry in parse_properties(re.sub(r"^#(?=\w+=)", "", EXAMPLE, flags=re.MULTILINE))
    }
    assert set(shown) == {name for name, source in sources().items() if source.in_file}
    assert {name: shown[name] for name in DEFAULTS if sources()[name].in_file} == {
        name: written(default) for name, default in DEFAULTS.items() if sources()[name].in_file
    }
