"""How a worker process is launched, and what is told of its output and its end."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.process import WorkerProcess, describe_exit
from ts.protocol.log_records import MARK

TOKEN = "TS_WORKER_TOKEN"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-11, "was killed by SIGSEGV"),
        (-15, "was killed by SIGTERM"),
        (-9, "was killed by SIGKILL, by an operator, or by the system because memory ran out"),
        (-63, "was killed by signal 63"),
    ],
)
def test_the_end_of_a_process_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


def test_a_worker_runs_with_the_servers_interpreter(tmp_path: Path) -> None:
    command = Launch(tmp_path).command(tmp_path / "socket")
    assert command[0] == sys.executable
    assert command[-2:] == ["--socket", str(tmp_path / "socket")]


def test_runtime_python3_is_the_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python3").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launch = Launch(tmp_path, runtime="python3")
    assert launch.command(tmp_path)[0] == str(tmp_path / "python3")
    (tmp_path / "python3").unlink()
    with pytest.raises(FileNotFoundError, match="python3"):
        launch.command(tmp_path)


def test_the_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/inherited")
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setenv("KEPT", "y")
    launch = Launch(tmp_path, environment={"ADDED": "z"}, hidden_variables=frozenset({"SECRET"}))
    environment = launch.worker_environment("the token")
    assert "SECRET" not in environment
    assert {environment["KEPT"], environment["ADDED"], environment[TOKEN]} == {"y", "z", "the token"}
    inherited, server = environment["PYTHONPATH"].split(os.pathsep)
    assert (inherited, environment["TS_WORKER_FOLDERS"]) == ("/inherited", str(tmp_path))
    assert (Path(server) / "ts" / "process" / "worker.py").is_file()
    assert TOKEN not in os.environ


class Script(Launch):
    """Runs Python source instead of a worker."""

    def command(self, socket: Path) -> list[str]:
        return [sys.executable, "-c", (self.working_dir / "script").read_text()]


async def run(directory: Path, source: str) -> WorkerProcess:
    (directory / "script").write_text(source)
    return await LocalLauncher().start(Script(directory), directory / "socket", "token", "1", "W-1-m_1.0", None)


async def test_what_a_process_prints_is_logged_line_by_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "MODEL_LOG")
    process = await run(
        tmp_path,
        "import sys\n"
        "sys.stdout.buffer.write('one\\ntwo\\r\\n\\xff'.encode('latin-1'))\n"
        "sys.stderr.write('bad news')\n"
        "sys.exit(4)",
    )
    assert process.pid > 0
    assert await process.wait() == "exited with code 4"
    assert not process.running
    by_stream = {
        stream: [record for record in caplog.records if vars(record)["worker"] == f"W-1-m_1.0-{stream}"]
        for stream in ("stdout", "stderr")
    }
    assert [record.getMessage() for record in by_stream["stdout"]] == ["one", "two", "\ufffd"]
    (news,) = by_stream["stderr"]
    assert (news.getMessage(), news.levelno) == ("bad news", logging.WARNING)
    assert (vars(news)["of_worker"], vars(news)["source"]) == ("1", "stderr")


async def test_a_record_of_a_process_keeps_its_level_and_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "MODEL_LOG")
    told = {"level": 10, "message": "lost\nit", "model_logger": "mine", "exception": "Traceback\nKeyError: 1"}
    odd = {"level": 40, "message": 5, "exception": {}}
    process = await run(tmp_path, "".join(f"print({MARK + json.dumps(each)!r})\n" for each in (told, odd)))
    await process.wait()
    first, second = caplog.records
    assert (first.levelno, first.getMessage(), vars(first)["model_logger"]) == (10, "lost\nit", "mine")
    assert first.exc_text == vars(first)["exception"] == "Traceback\nKeyError: 1"
    assert (second.levelno, second.getMessage(), second.exc_text) == (40, "5", None)


async def test_a_line_without_an_end_costs_bounded_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "MODEL_LOG")
    process = await run(tmp_path, "print('x' * 1_000_000, end='')")
    await process.wait()
    pieces = [record.getMessage() for record in caplog.records]
    assert "".join(pieces) == "x" * 1_000_000
    assert len(pieces) > 1


async def test_a_killed_process_says_so(tmp_path: Path) -> None:
    process = await run(tmp_path, "import time; time.sleep(600)")
    process.kill()
    assert (await process.wait()).startswith("was killed by SIGKILL")
    process.kill()


def starting_a_child(directory: Path, **more: Any) -> str:
    """Source of a process that starts another and exits at once."""
    return (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], **{more})\n"
        f"open({str(directory / 'child')!r}, 'w').write(str(child.pid))\n"
    )


async def test_what_a_process_has_started_ends_with_it(tmp_path: Path) -> None:
    process = await run(tmp_path, starting_a_child(tmp_path))
    async with asyncio.timeout(60):
        assert await process.wait() == "exited with code 0"
        child = int((tmp_path / "child").read_text())
        while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            await asyncio.sleep(0.01)


async def test_a_process_that_got_the_number_of_an_adopted_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    process = await run(tmp_path, "import time; time.sleep(600)")
    try:
        with monkeypatch.context() as patch:
            patch.setattr("torchserve_py.core.workers.process.started", lambda pid: "long ago")
            process.adopt(other.pid)
        process.kill()
        await process.wait()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


async def test_a_child_that_holds_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    process = await run(tmp_path, starting_a_child(tmp_path, start_new_session=True))
    try:
        async with asyncio.timeout(60):
            assert await process.wait() == "exited with code 0"
    finally:
        os.kill(int((tmp_path / "child").read_text()), 9)
