"""What the command refuses before it sends anything, and its exit status."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.tools.replay.recorded import recorded

from torchserve_py.tools.replay.replay_command import main


def write(folder: Path, **changes: Any) -> str:
    file = folder / "j.jsonl"
    file.write_text(f"{json.dumps(recorded(**changes))}\n")
    return str(file)


def test_a_journal_of_a_newer_version_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path, format=2)]) == 2
    assert "has records of format 2, and this version of torchserve-py reads format 1" in capsys.readouterr().err


def test_what_is_no_journal_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "j.jsonl").write_bytes(b"\x1f\x8b\n\n\x00")
    assert main([str(tmp_path)]) == 2
    assert "There is no record in the journal; 3 of its lines are none." in capsys.readouterr().err


def test_a_model_without_requests_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path), "--model", "typo=2.0"]) == 2
    assert "The journal has no request to 'typo'; it has requests to m." in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--server", "--grpc"])
@pytest.mark.parametrize("url", ["localhost:8080", "http://", "grpc://"])
def test_an_address_that_is_no_url_is_refused(
    flag: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([write(tmp_path), flag, url])
    assert ended.value.code == 2
    assert f"{url!r} must be a URL that begins with" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path), "--server", "http://127.0.0.1:1"]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("torchserve-py replay: http://127.0.0.1:1 cannot be reached: ")
    assert printed.out == ""
