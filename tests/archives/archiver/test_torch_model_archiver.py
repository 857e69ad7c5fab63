"""The command `torch-model-archiver`, and TorchServe's Python API for it."""

import os
import pty
import subprocess
import sys
import termios
from argparse import Namespace
from pathlib import Path

import pytest

import model_archiver
from model_archiver import ModelArchiver, ModelArchiverConfig, model_packaging, model_packaging_utils
from model_archiver.model_archiver_error import ModelArchiverError
from torchserve_py.archives.archiver.pack import PackOptions
from torchserve_py.archives.archiver.torch_model_archiver import main, parse_options
from torchserve_py.core.archive import progress_bar
from torchserve_py.core.archive.model_files import open_model

REQUIRED = ["--model-name", "noop", "--handler", "base_handler", "--version", "1.0"]


def test_every_flag_is_read() -> None:
    given = [
        *("--model-name", "m", "--handler", "h.py", "--version", "3", "--serialized-file", "w.pt"),
        *("--model-file", "m.py", "--extra-files", "a,b", "--runtime", "LSP", "--export-path", "out"),
        *("--archive-format", "tgz", "--force", "--requirements-file", "r.txt", "--config-file", "c.yaml"),
    ]
    expected = PackOptions("m", "h.py", "3", "w.pt", "m.py", "a,b", "LSP", "out", "tgz", True, "r.txt", "c.yaml")
    assert parse_options(given) == expected
    short = {"--version": "-v", "--force": "-f", "--requirements-file": "-r", "--config-file": "-c"}
    assert parse_options([short.get(text, text) for text in given]) == expected


def test_what_is_not_given_has_torchserves_defaults() -> None:
    assert parse_options(REQUIRED) == PackOptions("noop", "base_handler", "1.0")


@pytest.mark.parametrize("missing", ["--model-name", "--handler", "--version"])
def test_three_flags_are_required(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = REQUIRED.index(missing)
    with pytest.raises(SystemExit) as caught:
        main(REQUIRED[:at] + REQUIRED[at + 2 :])
    assert caught.value.code == 2
    assert missing in capsys.readouterr().err


@pytest.mark.parametrize("bad", [("--runtime", "cobol"), ("--archive-format", "rar"), ("--surprise", "x")])
def test_bad_usage_is_refused(bad: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*REQUIRED, *bad])
    assert caught.value.code == 2


def test_success_says_where_the_archive_is(model_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*REQUIRED, "--export-path", str(model_store)]) == 0
    assert capsys.readouterr().out == f"Successfully exported model noop to file {model_store}/noop.mar\n"
    assert main([*REQUIRED, "--export-path", str(model_store)]) == 1
    assert f"ERROR - {model_store}/noop.mar already exists.\nPlease specify" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--model-name", "a b"], "ERROR - Model name contains special characters."),
        (["--handler", "gone"], "ERROR - Handler file does not exist: gone.py"),
        (["--extra-files", "gone"], "ERROR - File does not exist: gone"),
    ],
)
def test_a_failure_is_one_message_and_status_1(
    flags: list[str], error: str, model_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*REQUIRED, "--export-path", str(model_store), *flags]) == 1
    assert capsys.readouterr().err.startswith(error)


def test_the_command_loads_no_server_and_no_torch() -> None:
    script = (
        "import sys; import torchserve_py.archives.archiver.torch_model_archiver;"
        "print([name for name in ('aiohttp', 'torch', 'tqdm', 'asyncio', 'yaml') if name in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180, env=_environment())
    assert run.stdout == "[]\n"


def test_a_progress_bar_is_for_large_content_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(total: int | None) -> str:
        with progress_bar.progress_bar(total, "noop.mar") as bar:
            bar(1)
        return capsys.readouterr().err

    assert shown(10**9) == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert shown(progress_bar.LARGE_BYTES - 1) == ""
    assert "noop.mar" in shown(10**9)
    assert "noop.mar" in shown(None)


def test_the_command_on_a_terminal_shows_the_bar(model_store: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    with weights.open("wb") as file:
        file.truncate(progress_bar.LARGE_BYTES)
    arguments = [*REQUIRED, "--export-path", str(model_store), "--serialized-file", str(weights)]
    command = [sys.executable, "-m", "torchserve_py.archives.archiver.torch_model_archiver", *arguments]
    terminal, stderr = pty.openpty()
    termios.tcsetwinsize(stderr, (24, 80))
    try:
        subprocess.run(command, check=True, stderr=stderr, stdout=subprocess.DEVNULL, timeout=180, env=_environment())
        os.set_blocking(terminal, False)
        assert b"noop.mar" in os.read(terminal, 65536)
    finally:
        os.close(stderr)
        os.close(terminal)


def test_torchserves_python_api(model_store: Path, temp_dir: Path) -> None:
    config = ModelArchiverConfig(model_name="noop", handler="base_handler", version="1.0", export_path=str(model_store))
    ModelArchiver.generate_model_archive(config)
    assert open_model(model_store / "noop.mar", temp_dir).name == "noop"
    with pytest.raises(ModelArchiverError, match="already exists"):
        model_packaging.generate_model_archive(config)
    config.force = True
    model_packaging.generate_model_archive(config)
    assert model_packaging_utils.model_handlers["image_classifier"] == "vision"
    assert model_packaging_utils.archiving_options["tgz"] == ".tar.gz"
    assert model_archiver.__version__


def test_the_python_api_reads_the_command_line_when_it_is_given_nothing(
    model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["torch-model-archiver", *REQUIRED, "--export-path", str(model_store)])
    model_packaging.generate_model_archive()
    assert (model_store / "noop.mar").is_file()


def test_the_python_apis_defaults_are_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = ModelArchiverConfig("noop", "base_handler", "1.0")
    assert config.export_path == str(tmp_path)
    assert ModelArchiverConfig.from_args(Namespace(**vars(config))) == config


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
