"""Packing a Truss: its folder as it is, with the packages that it uses from elsewhere."""

import zipfile
from pathlib import Path

import pytest

from torchserve_py.archives.archiver.errors import PackError
from torchserve_py.archives.archiver.pack import pack
from torchserve_py.archives.archiver.torch_model_archiver import parse_options
from torchserve_py.core.archive.model_files import open_model


def make_truss(tmp_path: Path, config: str = "") -> Path:
    folder = tmp_path / "mine"
    for name, text in {
        "config.yaml": config,
        "model/model.py": "class Model: ...\n",
        "packages/helper.py": "",
        "data/weights.bin": "0",
        "model/__pycache__/model.pyc": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def packed(folder: Path, store: Path) -> Path:
    flags = ["--model-name", "mine", "--version", "1.0", "--extra-files", str(folder), "--export-path", str(store)]
    return pack(parse_options(flags))


def test_a_truss_is_packed_without_a_handler_and_opened_as_a_truss(tmp_path: Path) -> None:
    archive = packed(make_truss(tmp_path), tmp_path / "store")
    assert set(zipfile.ZipFile(archive).namelist()) == {
        "MAR-INF/MANIFEST.json",
        "config.yaml",
        "data/weights.bin",
        "model/model.py",
        "packages/helper.py",
    }
    files = open_model(archive, tmp_path / "tmp")
    assert (files.contract, files.name, files.manifest.handler) == ("truss", "mine", None)


def test_packages_from_outside_join_the_bundled_ones(tmp_path: Path) -> None:
    shared = tmp_path / "shared" / "tools"
    shared.mkdir(parents=True)
    (shared / "__init__.py").write_text("")
    folder = make_truss(tmp_path, "external_package_dirs: [../shared]\nbundled_packages_dir: packages\n")
    names = zipfile.ZipFile(packed(folder, tmp_path / "store")).namelist()
    assert {"packages/tools/__init__.py", "packages/helper.py"} <= set(names)


def test_of_a_repeated_key_the_last_value_counts_as_when_the_truss_is_served(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "tool.py").write_text("")
    folder = make_truss(tmp_path, "external_package_dirs: [../nowhere]\nexternal_package_dirs: [../shared]\n")
    assert "packages/tool.py" in zipfile.ZipFile(packed(folder, tmp_path / "store")).namelist()


def test_packages_that_are_not_there_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        packed(make_truss(tmp_path, "external_package_dirs: [../nowhere]\n"), tmp_path / "store")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            "a: 1\nexternal_package_dirs: ./x\n",
            "line 2: external_package_dirs is './x' (str), it must be a list of texts",
        ),
        ("external_package_dirs: [7]\n", "line 1: external_package_dirs is [7] (list), it must be a list of texts"),
        (
            "bundled_packages_dir: ../packages\n",
            "line 1: bundled_packages_dir is '../packages' (str), it must be a path inside of the Truss's folder",
        ),
    ],
)
def test_packages_that_are_no_folders_are_told_as_when_the_truss_is_served(
    config: str, told: str, tmp_path: Path
) -> None:
    folder = make_truss(tmp_path, config)
    with pytest.raises(PackError) as error:
        packed(folder, tmp_path / "store")
    assert str(error.value) == f"{folder / 'config.yaml'}: {told}"


@pytest.mark.parametrize("config", ["a: {", "- a"])
def test_a_broken_config_is_told(config: str, tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"config\.yaml"):
        packed(make_truss(tmp_path, config), tmp_path / "store")


def test_files_that_are_no_model_need_a_handler(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.txt").write_text("")
    with pytest.raises(PackError, match="--handler"):
        packed(tmp_path / "other", tmp_path / "store")
