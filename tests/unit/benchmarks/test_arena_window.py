"""The benchmark of a stream without end runs, and its outputs are those of its reference."""

import pytest

pytest.importorskip("torch")
from benchmarks import arena_window


def test_outputs_are_those_of_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arena_window, "TURN", 100)
    monkeypatch.setattr("sys.argv", ["arena_window", "--steps", "250", "--window", "20", "--sequences", "2"])
    arena_window.main()
    printed = capsys.readouterr().out
    assert "steps 100 to 200" in printed
    assert float(printed.split()[-1]) < 1e-5, "the largest difference"
