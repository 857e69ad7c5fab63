"""The server's own folder: it goes with its server, also with one that was killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from torchserve_py.base.server_folder import server_folder

HOLD = """
import sys
from pathlib import Path
from torchserve_py.base.server_folder import server_folder

with server_folder(Path(sys.argv[1])) as folder:
    (folder / "models").mkdir()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_folder_goes_with_its_server(tmp_path: Path) -> None:
    with server_folder(tmp_path) as folder:
        (folder / "file").touch()
        assert folder.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_killed_server_s_folder_goes_with_the_next_start_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    folders = [tmp_path / "models", tmp_path / "ts-node", tmp_path / "ts-server-backups"]
    link, file = tmp_path / "ts-server-linklink", tmp_path / "ts-server-filefile"
    for each in folders:
        each.mkdir()
    link.symlink_to(folders[0])
    file.touch()
    foreign = [*folders, link, file]
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        killed, running = (Path(each.stdout.readline().strip()) for each in servers if each.stdout is not None)
        servers[0].kill()
        servers[0].wait()
        assert killed.exists()
        with server_folder(tmp_path) as own:
            assert sorted(tmp_path.iterdir()) == sorted([*foreign, running, own])
            assert [each.name for each in running.iterdir()] == ["models"]
    finally:
        for each in servers:
            each.kill()
            each.communicate()


def test_a_folder_that_another_start_removes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    really = tempfile.mkdtemp

    def make_and_lose_the_first(prefix: str, dir: Path) -> str:
        made.append(Path(really(prefix=prefix, dir=dir)))
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose_the_first)
    with server_folder(tmp_path) as folder:
        assert [folder] == made[1:]
        assert folder.is_dir()
