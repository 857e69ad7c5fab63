"""What commands print does not move a cursor, ring a bell or turn texts around."""

import ast
import json
from pathlib import Path

import pytest

import torchserve_py
from torchserve_py.base.terminal import tell, visible

HOSTILE = "\x1b]0;title\x07\x9b2J a\u202eb\u2066c\u2028d\x7f\ud800 \x00"
SHOWN = r"\u001b]0;title\u0007\u009b2J a\u202eb\u2066c\u2028d\u007f\\ud800 \u0000"


def test_a_value_is_shown_on_one_line_and_nothing_in_it_is_obeyed() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\r\nb") == r"a\u000d\u000ab"
    assert visible("grün 猫 🙂 é") == "grün 猫 🙂 é"
    assert visible(7) == "7"


def test_what_is_printed_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    tell(f"one\n\ttwo {HOSTILE}")
    tell("three\r", to_stderr=True)
    printed = capsys.readouterr()
    assert printed.out == f"one\n\ttwo {SHOWN}\n"
    assert printed.err == "three\\u000d\n"


def test_json_that_is_printed_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    tell(json.dumps({"id": HOSTILE.replace("\ud800", "")}, ensure_ascii=False, indent=2))
    assert json.loads(capsys.readouterr().out)["id"] == HOSTILE.replace("\ud800", "")


def test_every_command_prints_so() -> None:
    root = Path(torchserve_py.__file__).parent
    for file in root.rglob("*.py"):
        calls = (node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
        printing = [func for func in calls if isinstance(func, ast.Name) and func.id == "print"]
        assert not printing or file == root / "base" / "terminal.py", f"{file} prints by itself; use tell"
