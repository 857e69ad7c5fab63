"""The steps of TorchServe's archiver, for tools that take them one by one."""

import json
import tempfile
import zipfile
from pathlib import Path

import pytest

from model_archiver import ModelArchiverConfig
from model_archiver.manifest_components.manifest import Manifest, RuntimeType
from model_archiver.manifest_components.model import Model
from model_archiver.model_archiver_error import ModelArchiverError
from model_archiver.model_packaging_utils import ModelExportUtils


@pytest.fixture
def config(tmp_path: Path) -> ModelArchiverConfig:
    for name in ("handler.py", "weights.pt", "labels.json"):
        (tmp_path / name).write_text(name)
    return ModelArchiverConfig(
        "steps",
        str(tmp_path / "handler.py"),
        "1.0",
        serialized_file=str(tmp_path / "weights.pt"),
        extra_files=str(tmp_path / "labels.json"),
        export_path=str(tmp_path / "out"),
    )


def test_a_manifest() -> None:
    manifest = Manifest(
        "python", Model("m", "/a/m.pt", "/b/handler.py", "c/model.py", "2.0", None, "r.txt", "d/c.yaml")
    )
    assert manifest.runtime is RuntimeType.PYTHON
    written = json.loads(str(manifest))
    assert list(written) == ["createdOn", "runtime", "model", "archiverVersion"]
    assert written["model"] == {
        "modelName": "m",
        "serializedFile": "m.pt",
        "handler": "handler.py",
        "modelFile": "model.py",
        "modelVersion": "2.0",
        "requirementsFile": "r.txt",
        "configFile": "c.yaml",
    }
    with pytest.raises(ValueError, match="java"):
        Manifest("java", manifest.model)


@pytest.mark.parametrize("archive_format", ["default", "zip-store", "no-archive"])
def test_the_steps_make_an_archive(
    config: ModelArchiverConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive_format: str
) -> None:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    utils = ModelExportUtils
    utils.validate_inputs(config.model_name, config.export_path)
    export = utils.check_mar_already_exists(config.model_name, config.export_path, False, archive_format)
    files = {"handler": config.handler, "serialized_file": config.serialized_file, "extra_files": config.extra_files}
    collected = utils.copy_artifacts(config.model_name, config.runtime, **files)
    assert sorted(path.name for path in Path(collected).iterdir()) == ["handler.py", "labels.json", "weights.pt"]
    utils.archive(export, config.model_name, collected, utils.generate_manifest_json(config), archive_format)
    made = Path(utils.get_archive_export_path(export, config.model_name, archive_format))
    names = {"MAR-INF/MANIFEST.json", "handler.py", "labels.json", "weights.pt"}
    if archive_format == "no-archive":
        assert {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()} == names
        return
    with zipfile.ZipFile(made) as archive:
        assert set(archive.namelist()) == names
        assert json.loads(archive.read("MAR-INF/MANIFEST.json"))["model"]["handler"] == "handler.py"
    with pytest.raises(ModelArchiverError, match="already exists"):
        utils.check_mar_already_exists(config.model_name, config.export_path, False, archive_format)


def test_the_helpers(tmp_path: Path) -> None:
    assert ModelExportUtils.find_unique(["a.pt", "b.txt"], ".pt") == "a.pt"
    assert ModelExportUtils.find_unique([], ".pt") is None
    with pytest.raises(ModelArchiverError, match="there are 2"):
        ModelExportUtils.find_unique(["a.pt", "b.pt"], ".pt")
    assert not ModelExportUtils.directory_filter("__pycache__", {"__pycache__"})
    assert not ModelExportUtils.directory_filter(".git", set())
    assert ModelExportUtils.directory_filter("src", set())
    taken = [name for name in ("a.py", "b.pyc", "MANIFEST.json") if ModelExportUtils.file_filter(name, set())]
    assert taken == ["a.py"]
    (tmp_path / "file").touch()
    ModelExportUtils.clean_temp_files([str(tmp_path / "file")])
    assert not (tmp_path / "file").exists()
    with pytest.raises(ModelArchiverError, match="special characters"):
        ModelExportUtils.check_model_name_regex_or_exit("a b")
