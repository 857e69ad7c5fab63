"""`torchserve-py example`: what it writes, and that it changes no file. Examples of the pages show that it serves."""

from pathlib import Path

import pytest

from torchserve_py.cli import main

HANDLERS = Path(__file__).parents[2] / "handlers"
NAMES = sorted(each.name for each in HANDLERS.iterdir() if each.is_dir() and each.name != "__pycache__")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_examples_are_written_where_the_pages_name_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["example", "durable", "stateful"]) == 0
    for path in ("durable/durable_handler.py", "stateful/model-config.yaml", "stateful/sample/sample1.txt"):
        assert (folder / "handlers" / path).read_bytes() == (HANDLERS / path).read_bytes()
    assert "Written to handlers/durable: README.md, durable_handler.py, model-config.yaml\n" in capsys.readouterr().out


def test_all_examples_can_be_written_and_again(folder: Path) -> None:
    assert main(["example", *NAMES]) == 0
    assert main(["example", *NAMES]) == 0
    assert not list(folder.rglob("__pycache__"))


def test_the_files_that_deploy_the_server_are_written(folder: Path) -> None:
    assert main(["example", "deploy"]) == 0
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    root = HANDLERS.parent
    assert written == {path.relative_to(root) for path in (root / "deploy").rglob("*.*") if path.is_file()} - {
        Path("deploy/container.properties")
    }
    assert (folder / "deploy/chart/Chart.yaml").read_bytes() == (root / "deploy/chart/Chart.yaml").read_bytes()


def test_a_changed_file_stays_and_nothing_else_of_its_example_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = folder / "handlers" / "durable" / "model-config.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("batchSize: 3\n")
    assert main(["example", "durable"]) == 1
    assert mine.read_text() == "batchSize: 3\n"
    assert [each.name for each in mine.parent.iterdir()] == [mine.name]
    assert "handlers/durable/model-config.yaml is there already" in capsys.readouterr().err


def test_an_unknown_name_is_answered_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["example", "durabel"])
    assert ended.value.code == 2
    assert "'durabel' (choose from 'chat', 'deploy', 'durable'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "handlers").write_text("a file\n")
    assert main(["example", "echo"]) == 1
    assert "handlers" in capsys.readouterr().err
