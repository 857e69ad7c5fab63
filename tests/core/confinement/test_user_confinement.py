"""Workers as another user and with less memory: what is possible is done, what is not is told at the start."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from torchserve_py.core.confinement import user_confinement
from torchserve_py.core.confinement.user_confinement import UserConfinement, confinement_of
from torchserve_py.core.workers.confinement import ConfinementError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes as another user")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = UserConfinement("nobody", None, 512 << 20).wrap(["sh", "-c", *arguments])
    return subprocess.run(command, capture_output=True, text=True, check=False)


@as_root
def test_the_command_runs_as_the_user_with_no_group_of_roots_and_its_own_home() -> None:
    account = pwd.getpwnam("nobody")
    said = run("id -u; id -G; echo $HOME; ulimit -d; ulimit -Hd; umask").stdout.split()
    assert said == [str(account.pw_uid), str(account.pw_gid), account.pw_dir, "524288", "524288", "0077"]


@as_root
def test_there_is_no_way_back() -> None:
    assert "not permitted" in run("exec /usr/bin/env python3 -c 'import os; os.setuid(0)'").stderr


@as_root
def test_a_model_cannot_run_code_before_the_user_has_changed(tmp_path: Path) -> None:
    for module in ("pwd", "resource", "sitecustomize", "ts"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('ran as root')")
    command = UserConfinement("nobody", None, None).wrap(["id", "-u"])
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == pwd.getpwnam("nobody").pw_uid


def test_memory_beyond_the_limit_is_an_error_of_the_program() -> None:
    code = "try: bytearray(1 << 30)\nexcept MemoryError: print('no memory')"
    command = UserConfinement(memory=512 << 20).wrap([sys.executable, "-c", code])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "no memory\n"


def test_without_settings_nothing_changes() -> None:
    assert confinement_of(None, None, ()).wrap(["a"]) == ["a"]
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert confinement_of(own, None, ()) == UserConfinement()


def test_a_command_that_is_missing_is_told() -> None:
    command = UserConfinement(memory=1 << 30).wrap(["no-such-command"])
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "cannot be started" in ran.stderr


def test_what_is_not_possible_is_told_with_what_would_be_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfinementError, match="worker_user = no-such-user: there is no such user"):
        confinement_of("no-such-user", None, ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfinementError, match="only a server that root has started"):
        confinement_of("nobody", None, ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(ConfinementError, match="may not enter"):
        confinement_of("nobody", None, (closed / "inner",))
    monkeypatch.setattr(user_confinement.sys, "platform", "darwin")
    with pytest.raises(ConfinementError, match="only Linux"):
        confinement_of(None, 1, ())


@as_root
def test_a_models_files_can_be_read_by_the_user_and_not_written(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "inner").mkdir(parents=True, mode=0o700)
    (folder / "inner" / "weights").write_text("w")
    (folder / "inner" / "weights").chmod(0o660)
    (folder / "link").symlink_to("/etc/shadow")
    before = Path("/etc/shadow").stat()
    group = pwd.getpwnam("nobody").pw_gid
    UserConfinement("nobody", group).share(folder, None)
    assert (folder / "inner" / "weights").stat().st_mode & 0o070 == 0o040
    assert (folder / "inner" / "weights").stat().st_gid == group
    assert (folder / "inner").stat().st_mode & 0o070 == 0o050
    after = Path("/etc/shadow").stat()
    assert (after.st_gid, after.st_mode) == (before.st_gid, before.st_mode)


@as_root
def test_a_folder_that_workers_write_to_is_their_users(tmp_path: Path) -> None:
    UserConfinement().give(tmp_path)
    assert tmp_path.stat().st_uid == 0
    UserConfinement(user="nobody").give(tmp_path)
    assert tmp_path.stat().st_uid == pwd.getpwnam("nobody").pw_uid
