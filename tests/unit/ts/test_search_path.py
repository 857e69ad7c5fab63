"""Where a worker looks for a model's modules: behind Python's own, and before installed packages."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import load_message

from ts.jobs.errors import LoadError
from ts.jobs.search_path import OWN_ROOT, hidden_modules, hint, search_in
from ts.process.worker import find_modules
from ts.runtime.loader import load_service

LIBRARY = str(Path(os.__file__).parent)
FIRST = ["/inherited", OWN_ROOT, LIBRARY, f"{LIBRARY}/lib-dynload"]


def test_folders_come_behind_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/packages", *FIRST, "/site-packages"])
    search_in(["/model", "/packages"])
    assert sys.path == ["/inherited", *FIRST[2:], "/model", "/packages", OWN_ROOT, "/site-packages"]
    search_in(["/model/sub", "/model"])
    assert sys.path[3:6] == ["/model/sub", "/model", "/model"]


def test_programs_of_a_model_find_its_modules_unless_these_hide_pythons(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "path", [*FIRST])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/inherited", OWN_ROOT]))
    find_modules(str(tmp_path))
    assert os.environ["PYTHONPATH"] == os.pathsep.join(["/inherited", str(tmp_path)])

    (tmp_path / "types.py").touch()
    monkeypatch.setenv("PYTHONPATH", OWN_ROOT)
    find_modules(str(tmp_path))
    assert "PYTHONPATH" not in os.environ


def test_a_module_that_python_has_too_is_named_if_it_was_meant(tmp_path: Path) -> None:
    for name in ("token.py", "queue/__init__.py", "utils.py", "json.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "random").mkdir()  # a folder of data
    assert hidden_modules(str(tmp_path)) == ["queue", "token"]
    told = hint(ImportError("cannot import name 'Token' from 'token' (/usr/lib/token.py)"), str(tmp_path))
    assert "the model's own token.py has the name of a module of Python's" in told
    assert hint(AttributeError("module 'token' has no attribute 'Token'"), str(tmp_path)) == told
    assert not hint(AttributeError("module 'utils' has no attribute 'x'"), str(tmp_path))
    assert not hint(ValueError("'token'"), str(tmp_path))


@pytest.mark.parametrize("name", ["signal.py", "calendar.py", "test.py"])
def test_a_handler_with_the_name_of_a_module_of_pythons_is_refused(
    name: str, tmp_path: Path, model: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    model("def handle(data, context): ...", name)
    load: Any = load_message(tmp_path, name)
    with pytest.raises(LoadError, match="has the name of a module that Python itself uses; rename it"):
        load_service(load)
