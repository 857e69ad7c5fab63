"""The distribution holds every package of the source tree, and its commands exist."""

import ast
import configparser
import importlib
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from torchserve_py.version import __version__

ROOT = Path(__file__).resolve().parents[2]


def metadata() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_is_distributed() -> None:
    found = {
        ".".join(init.parent.relative_to(root).parts)
        for root in (ROOT / "frontend", ROOT / "backend")
        for init in root.rglob("__init__.py")
    }

    assert set(metadata()["options"]["packages"].split()) == {
        *found,
        "torchserve_py.deploy_files",
        "torchserve_py.example_models",
    }


def test_every_command_exists() -> None:
    lines = metadata()["options.entry_points"]["console_scripts"].strip().splitlines()

    for line in lines:
        module, function = line.partition("=")[2].strip().split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_the_first_pages_name_the_versions_of_python_of_the_metadata() -> None:
    """The indexes show the classifiers; people read the pages."""
    versions = re.findall(r"^Programming Language :: Python :: (3\.\d+)$", metadata()["metadata"]["classifiers"], re.M)
    named = f"Python {', '.join(versions[:-1])} or {versions[-1]}"
    for page in ("README.md", "docs/index.md"):
        assert named in (ROOT / page).read_text(), f"{page}: {named}"
    assert metadata()["options"]["python_requires"] == f">={versions[0]}"


def test_what_is_pinned_is_pinned_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]

    assert all("==" in line for line in lines)
    assert "torch==2.13.0" in lines


def test_the_newest_released_changes_and_the_citation_are_those_of_this_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == ("Unreleased", "")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert headings[1] == (__version__, citation["date-released"]) == (citation["version"], citation["date-released"])
    assert citation["license"] == metadata()["metadata"]["license"]


@pytest.mark.parametrize("name", ["stateful", "echo", "durable"])
def test_handlers_of_the_first_steps_need_nothing_but_the_server(name: str) -> None:
    """The quickstart and the README serve these handlers after a bare `pip install .`."""
    required = {re.split(r"[^\w.-]", line)[0].lower() for line in metadata()["options"]["install_requires"].split()}
    packages = {package.partition(".")[0] for package in metadata()["options"]["packages"].split()}
    modules = {
        module.partition(".")[0]
        for path in (ROOT / "handlers" / name).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for module in _imported_modules(node)
    }
    for module in modules - packages - sys.stdlib_module_names:
        assert required & {distribution.lower() for distribution in packages_distributions()[module]}, module


def _imported_modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []
