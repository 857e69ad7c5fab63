"""What fills the folder of a model for a handler's own unit tests."""

from pathlib import Path

import pytest

from ts.torch_handler.unit_tests.test_utils.model_dir import copy_files, download_model


def test_files_get_the_names_that_they_are_to_have(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "a.py").write_text("a")
    copy_files(tmp_path / "from", tmp_path / "to", {"a.py": "model.py"})
    assert (tmp_path / "to" / "model.py").read_text() == "a"


def test_weights_are_downloaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "weights.pth"
    weights.write_text("weights")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        download_model(weights.as_uri(), tmp_path / name)
        weights.unlink(missing_ok=True)
        assert (tmp_path / name / "model.pt").read_text() == "weights"
    with pytest.raises(ValueError, match="it must begin with http"):
        download_model("ftp://h/weights.pth", tmp_path)
