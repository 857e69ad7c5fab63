"""From `torch-workflow-archiver` to an unpacked workflow, and archives that are none."""

import json
import zipfile
from pathlib import Path

import pytest

from torchserve_py.apis.workflows.archive import WorkflowFiles, obtain
from torchserve_py.apis.workflows.errors import InvalidWorkflow, WorkflowError, WorkflowNotFound
from torchserve_py.apis.workflows.torch_workflow_archiver import main
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.model_files import open_model
from torchserve_py.version import __version__

SPEC = "models: {m: {url: m.mar}}\ndag: {pre: [m]}\n"
MANIFEST = {"workflowName": "w", "specFile": "spec.yaml", "handler": "h.py"}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.yaml").write_text(SPEC)
    (tmp_path / "models_only.yaml").write_text("models: {m: {url: m.mar}}\ndag: {m: []}\n")
    (tmp_path / "h.py").write_text("def pre(data, context):\n    return data\n")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "labels.txt").write_text("cat")
    return tmp_path


def opened(folder: Path, url: str = "w.war", store: Path | None = None) -> WorkflowFiles:
    return obtain(
        url,
        workflow_store=store or folder / "store",
        temp_dir=folder / "tmp",
        policy=DownloadPolicy(),
    )


def write_war(folder: Path, files: dict[str, str]) -> None:
    (folder / "store").mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "store" / "w.war", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def unpacked_folders(folder: Path) -> list[Path]:
    return list((folder / "tmp" / "models").iterdir()) if (folder / "tmp").exists() else []


def test_what_is_packed_can_be_opened(
    sources: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    arguments = ["--workflow-name", "w", "--spec-file", "spec.yaml", "--handler", "h.py", "--extra-files", "extra"]
    assert main([*arguments, "--export-path", "store"]) == 0
    assert "Successfully exported workflow w to file store/w.war" in capsys.readouterr().out
    with zipfile.ZipFile("store/w.war") as archive:
        manifest = json.loads(archive.read("WAR-INF/MANIFEST.json"))
    assert list(manifest) == ["createdOn", "workflow", "archiverVersion"]
    assert manifest["workflow"] == MANIFEST
    assert manifest["archiverVersion"] == __version__

    with caplog.at_level("WARNING"):
        files = opened(sources)
        open_model(files.folder, sources / "tmp", url="w__pre")  # as the registration of the node pre does
    assert not caplog.records
    assert (files.name, files.handler, list(files.spec.nodes)) == ("w", "h.py", ["pre", "m"])
    assert {path.name for path in files.folder.iterdir()} >= {"spec.yaml", "h.py", "labels.txt"}
    files.remove(downloaded=True)
    assert not files.folder.exists()
    assert Path("store/w.war").exists()


def test_a_store_that_does_not_exist_is_told_when_it_is_used(tmp_path: Path) -> None:
    with pytest.raises(WorkflowNotFound, match="The workflow store does not exist: workflow_store must name"):
        opened(tmp_path)


def test_without_functions_no_handler_is_needed(sources: Path) -> None:
    assert main(["--workflow-name", "w", "--spec-file", "models_only.yaml", "--export-path", "store"]) == 0
    with zipfile.ZipFile("store/w.war") as archive:
        assert "handler" not in json.loads(archive.read("WAR-INF/MANIFEST.json"))["workflow"]
    assert opened(sources).handler is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workflow-name", "w/x", "--spec-file", "spec.yaml"], "Workflow name contains special characters."),
        (["--workflow-name", "w", "--spec-file", "no.yaml"], "File does not exist: no.yaml"),
        (["--workflow-name", "w", "--spec-file", "spec.yaml", "--handler", "no.py"], "File does not exist: no.py"),
        (["--workflow-name", "w", "--spec-file", "h.py"], "Invalid workflow specification"),
        (["--workflow-name", "w", "--spec-file", "spec.yaml"], "pre in dag is not one of the models, so --handler"),
    ],
)
def test_the_archiver_says_what_is_wrong(
    sources: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
    assert not list(sources.glob("*.war"))


def test_an_archive_is_overwritten_by_force_only(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--workflow-name", "w", "--spec-file", "spec.yaml", "--handler", "h.py"]
    Path("w.war").write_text("mine")
    assert main(arguments) == 1
    assert "w.war already exists.\nPlease specify --force/-f" in capsys.readouterr().err
    assert Path("w.war").read_text() == "mine"
    assert main([*arguments, "-f"]) == 0
    assert zipfile.is_zipfile("w.war")


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        (None, "there is none; was the archive made by torch-workflow-archiver?"),
        ("{", "no valid JSON"),
        ("[]", "no JSON object but a list"),
        ({**MANIFEST, "workflowName": ""}, "workflow.workflowName is '' (str), it must be a text"),
        ({**MANIFEST, "specFile": None}, "workflow.specFile is missing, it must be the path of a file in"),
        ({"workflowName": "w"}, "workflow.specFile is missing, it must be the path of a file in the archive"),
        (
            {**MANIFEST, "specFile": "../spec.yaml"},
            "workflow.specFile is '../spec.yaml' (str), it must be the path of a file in",
        ),
        ({**MANIFEST, "specFile": "other.yaml"}, "Invalid workflow specification other.yaml: No such file"),
        (
            {**MANIFEST, "handler": "/etc/h.py"},
            "workflow.handler is '/etc/h.py' (str), it must be the path of a file in",
        ),
        ({**MANIFEST, "handler": "other.py"}, "Workflow handler not found: other.py"),
        ({**MANIFEST, "handler": ""}, "pre must be in models, or functions of a handler file"),
    ],
)
def test_a_broken_archive_says_why_and_leaves_nothing(tmp_path: Path, manifest: object, problem: str) -> None:
    files = {"spec.yaml": SPEC, "h.py": ""}
    if manifest is not None:
        text = manifest if isinstance(manifest, str) else json.dumps({"workflow": manifest})
        files["WAR-INF/MANIFEST.json"] = text
    write_war(tmp_path, files)
    with pytest.raises(WorkflowError) as error:
        opened(tmp_path)
    assert problem in str(error.value)
    assert unpacked_folders(tmp_path) == []


def test_an_archive_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    manifest = json.dumps({"workflow": MANIFEST})
    write_war(tmp_path, {"WAR-INF/MANIFEST.json": manifest, "spec.yaml": SPEC, "../../escaped": "x"})
    with pytest.raises(InvalidWorkflow, match="may lead out"):
        opened(tmp_path)
    assert not list(tmp_path.rglob("escaped"))
    assert unpacked_folders(tmp_path) == []


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "w.war").write_text("nonsense")
    with pytest.raises(InvalidWorkflow, match=r"^Failed to read workflow archive: w\.war: it is neither") as error:
        opened(tmp_path)
    assert error.value.status == 500


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("no.war", "Workflow not found in workflow store: no.war"),
        ("/etc/hostname", "Workflow not found in workflow store: /etc/hostname"),
        ("folder", "Workflow not found in workflow store: folder"),
        ("w\0.war", "Workflow not found in workflow store: w\0.war"),
        ("../w.war", "Relative path is not allowed in url: ../w.war"),
    ],
)
def test_what_is_not_in_the_store(tmp_path: Path, url: str, message: str) -> None:
    (tmp_path / "store" / "folder").mkdir(parents=True)
    with pytest.raises(WorkflowNotFound) as error:
        opened(tmp_path, url)
    assert str(error.value) == message
