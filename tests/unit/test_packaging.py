"""The distribution holds every package of the source tree, and its commands exist."""

from __future__ import annotations

import configparser
import importlib
from pathlib import Path

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

    assert set(metadata()["options"]["packages"].split()) == found


def test_every_command_exists() -> None:
    lines = metadata()["options.entry_points"]["console_scripts"].strip().splitlines()

    for line in lines:
        module, function = line.partition("=")[2].strip().split(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_what_is_pinned_is_pinned_exactly() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]

    assert all("==" in line for line in lines)
    assert "torch==2.13.0" in lines
