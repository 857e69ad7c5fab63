"""The command: what it prints, its exit codes, and which processes there are afterwards. The server is a small fake."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from torchserve_py.base.pid_file import PidFile
from torchserve_py.cli import main
from torchserve_py.tools.daemon.server_launcher import ServerLauncher
from torchserve_py.version import __version__

DEADLINE = 60.0
FAKE_SERVER = """
import os, signal, sys, time
from pathlib import Path

def end(number, frame):
    Path("signals").open("a").write(signal.Signals(number).name + " ")
    if "stubborn" not in os.environ.get("FAKE", ""):
        sys.exit(int(os.environ.get("FAKE_EXIT", "0")))

if "slow" in os.environ.get("FAKE", ""):
    while not Path("go on").exists():
        time.sleep(0.01)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, end)
Path("argv.part").write_text(" ".join(sys.argv[1:]))
os.rename("argv.part", "argv")
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
while True:
    time.sleep(0.05)
"""


#: Ports of which there is always one, since a start looks whether its addresses are free.
FREE = """
inference_address=http://127.0.0.1:0
management_address=http://127.0.0.1:0
metrics_address=http://127.0.0.1:0
grpc_inference_port=0
grpc_management_port=0
"""


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A current directory with a model store, and a fake server that can be started from it."""
    (tmp_path / "store").mkdir()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "fake_server.py").write_text(FAKE_SERVER)
    (tmp_path / "config.properties").write_text(FREE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "modules"), *filter(None, sys.path)]))
    yield tmp_path
    pid_path = tmp_path / "pid"
    if pid_path.exists() and int(pid_path.read_text()) != os.getpid():
        for process in psutil.process_iter(["pid", "cmdline"]):
            if str(process.pid) == pid_path.read_text() and "fake_server" in (process.info["cmdline"] or []):
                process.kill()
                process.wait(DEADLINE)


def launch(home, *argv):
    return ServerLauncher(argv, module="fake_server", pid_path=home / "pid").run()


def start(home, *argv):
    """Start the fake server and wait until it listens to signals; returns its process."""
    assert launch(home, "--model-store", "store", *argv) == 0
    wait_for((home / "argv").exists)
    return psutil.Process(int((home / "pid").read_text()))


def start_launcher(home, *argv, **environ):
    """Start a launcher process; it takes SIGHUP as usual, even where the tests run under nohup."""
    code = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL);"
        "import sys; from pathlib import Path; from torchserve_py.tools.daemon.server_launcher import ServerLauncher;"
        "sys.exit(ServerLauncher(sys.argv[1:], module='fake_server', pid_path=Path('pid')).run())"
    )
    command = [sys.executable, "-c", code, *argv, "--model-store", "store"]
    return subprocess.Popen(command, cwd=home, env=os.environ | environ)


# Start


def test_start_returns_at_once_and_leaves_a_server_in_a_session_of_its_own(home, capsys):
    server = start(home, "--start", "--ncs")
    assert (home / "argv").read_text() == "--model-store store --start --ncs"
    assert os.getsid(server.pid) == server.pid
    assert server.cwd() == str(home)
    assert oct((home / "pid").stat().st_mode & 0o777) == "0o644"
    assert [path.name for path in home.glob("*pid*")] == ["pid"]
    assert capsys.readouterr().out == ""


def test_who_looks_for_torchserves_process_finds_the_server(home):
    assert start(home).cmdline().count("org.pytorch.serve.ModelServer") == 1


def test_a_second_start_tells_who_is_running(home, capsys):
    server = start(home)
    assert launch(home, "--start", "--model-store", "store") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == "TorchServe is already running, please use torchserve --stop to stop TorchServe."
    place = f"process {server.pid} at http://127.0.0.1:0, started in {home}"
    assert second.startswith(f"It is {place}, running since 20")
    assert second.endswith(
        f"One server runs per temporary directory, here {home}: a second one needs another, in the variable TMPDIR."
    )


@pytest.mark.parametrize("argv", [["--model-store", "no"], ["--foreground", "--model-store", "store"]])
def test_a_wrong_configuration_is_told_before_any_process_starts(home, capsys, argv):
    (home / "config.properties").write_text("debug=maybe" if "store" in argv else "")
    assert launch(home, *argv) == 1
    assert capsys.readouterr().out.strip() in (
        "--model-store directory not found: no",
        "Invalid configuration: config.properties:1: debug = maybe: it must be true or false",
    )
    assert not (home / "pid").exists()


def test_a_missing_certificate_is_told_before_any_process_starts(home, capsys):
    (home / "config.properties").write_text("management_address=https://127.0.0.1:8444\ncertificate_file=no.pem")
    assert launch(home, "--start", "--model-store", "store") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"Invalid configuration: config.properties:2: certificate_file = {home / 'no.pem'}: no such file",
        "Invalid configuration: private_key_file: https with certificate_file and private_key_file needs both",
    ]
    assert not (home / "pid").exists()


def test_grpc_with_tls_needs_a_certificate(home, capsys):
    (home / "config.properties").write_text("enable_grpc_ssl=true\ncertificate_file=no.pem")
    assert launch(home, "--start", "--model-store", "store") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"Invalid configuration: config.properties:2: certificate_file = {home / 'no.pem'}: no such file",
        "Invalid configuration: private_key_file: enable_grpc_ssl needs certificate_file and private_key_file",
    ]
    assert not (home / "pid").exists()


@pytest.mark.parametrize("setting", ["management_address=http://127.0.0.1:{}", "grpc_inference_port={}"])
def test_an_address_that_is_taken_is_told_and_nothing_starts(home, capsys, setting):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (home / "config.properties").write_text(FREE + setting.format(port))
        assert launch(home, "--start", "--model-store", "store") == 1
    (told,) = capsys.readouterr().out.splitlines()
    assert told.startswith(f"{setting.partition('=')[0]}: cannot listen at ")
    assert str(port) in told
    assert "in use" in told
    assert not (home / "pid").exists()
    assert not fake_servers()


def test_a_pid_file_that_cannot_be_written_leaves_no_server(home, capsys):
    launcher = ServerLauncher(["--model-store", "store"], module="fake_server", pid_path=home / "no_directory" / "pid")
    assert launcher.run() == 1
    assert "cannot be written" in capsys.readouterr().out
    children = [child.cmdline() for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    assert not [cmdline for cmdline in children if "fake_server" in cmdline]


# Pid file


@pytest.fixture
def unused_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("content", ["{unused}", "", "no number"])
def test_an_orphan_pid_file_is_removed(home, capsys, unused_pid, content):
    (home / "pid").write_text(content.format(unused=unused_pid))
    assert launch(home, "--stop") == 0
    assert capsys.readouterr().out == "Removing orphan pid file.\nTorchServe is not currently running.\n"
    assert not (home / "pid").exists()


def test_a_pid_of_another_program_is_no_running_server(home, capsys):
    (home / "pid").write_text(str(os.getpid()))
    assert launch(home, "--stop") == 0
    assert capsys.readouterr().out == "TorchServe is not currently running.\n"
    assert (home / "pid").read_text() == str(os.getpid())
    server = start(home)
    assert server.pid != os.getpid()


def fake_servers():
    """Return the process ids of those that were started from the current directory."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "cwd"])
        if "fake_server" in (process.info["cmdline"] or []) and process.info["cwd"] == str(Path.cwd())
    ]


def test_of_several_starts_at_once_one_starts_a_server(home):
    launchers = [start_launcher(home) for _ in range(4)]
    codes = [launcher.wait(DEADLINE) for launcher in launchers]
    assert sorted(codes) == [0, 1, 1, 1]
    assert fake_servers() == [int((home / "pid").read_text())]
    assert [path.name for path in home.glob("pid*")] == ["pid"]


def test_a_start_that_another_one_overtakes_starts_nothing(home, monkeypatch, capsys):
    lock = PidFile.lock

    def lock_later(pid_file):
        monkeypatch.setattr(PidFile, "lock", lock)
        start(home)
        return lock(pid_file)

    monkeypatch.setattr(PidFile, "lock", lock_later)
    assert launch(home, "--model-store", "store") == 1
    assert capsys.readouterr().out.startswith("TorchServe is already running")
    assert fake_servers() == [int((home / "pid").read_text())]


def test_a_lock_that_is_never_given_back_ends_the_start(home, monkeypatch, capsys):
    monkeypatch.setattr("torchserve_py.base.pid_file._LOCK_LIMIT", 0)
    with PidFile(home / "pid", "fake_server").lock():
        assert launch(home, "--model-store", "store") == 1
    assert f"another start or stop holds {home / 'pid.lock'}" in capsys.readouterr().out
    assert not fake_servers()


# Stop


def test_stop_waits_until_the_server_is_gone(home, capsys):
    server = start(home)
    (home / "key_file.json").write_text("{}")
    assert launch(home, "--stop") == 0
    told = capsys.readouterr()
    assert told.out == "TorchServe has stopped.\n"
    assert told.err == f"Stopping process {server.pid} at http://127.0.0.1:0, started in {home}.\n"
    assert not server.is_running()
    assert (home / "signals").read_text() == "SIGTERM "
    assert not (home / "pid").exists()
    assert not (home / "key_file.json").exists()


def test_stop_from_elsewhere_deletes_the_key_file_of_the_server_and_no_other(home, monkeypatch):
    start(home)
    (home / "elsewhere").mkdir()
    for directory in (home, home / "elsewhere"):
        (directory / "key_file.json").write_text("{}")
    monkeypatch.chdir(home / "elsewhere")
    assert launch(home, "--stop") == 0
    assert list(home.rglob("key_file.json")) == [home / "elsewhere" / "key_file.json"]


def test_stop_without_a_server(home, capsys):
    assert launch(home, "--stop") == 0
    assert capsys.readouterr().out == "TorchServe is not currently running.\n"


def test_stop_gives_up_after_the_drain_limit_of_the_server_and_a_margin(home, capsys, monkeypatch):
    monkeypatch.setenv("FAKE", "stubborn")
    monkeypatch.setattr("torchserve_py.tools.daemon.server_launcher._STOP_MARGIN", 0)
    monkeypatch.setattr("torchserve_py.tools.daemon.server_launcher._TELL_OF_WAITING_AFTER", 0.0)
    (home / "config.properties").write_text(f"{FREE}drain_timeout=1")
    server = start(home)
    (home / "elsewhere").mkdir()
    monkeypatch.chdir(home / "elsewhere")
    assert launch(home, "--stop") == 1
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == f"Waiting for process {server.pid} to finish accepted requests and open sequences, at most 1 s."
    assert second == "Stopping TorchServe took too long."
    assert third == f"Process {server.pid} still runs after 1 s; kill -9 {server.pid} ends it at once."
    assert server.is_running()
    assert (home / "pid").exists()


def test_stop_of_a_server_that_vanishes_meanwhile(home, capsys, monkeypatch):
    server = start(home)

    def vanish(process):
        process.kill()
        process.wait(DEADLINE)
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "terminate", vanish)
    assert launch(home, "--stop") == 0
    assert capsys.readouterr().out == "TorchServe already stopped.\n"
    assert not (home / "pid").exists()
    assert not server.is_running()


# Foreground


def foreground(home, **environ):
    """Start a launcher process with --foreground and wait until it is the server and listens to signals."""
    process = start_launcher(home, "--foreground", **environ)
    wait_for((home / "argv").exists)
    return process


def test_in_the_foreground_the_launcher_becomes_the_server(home):
    process = foreground(home)
    assert fake_servers() == [process.pid] == [int((home / "pid").read_text())]
    process.kill()
    assert process.wait(DEADLINE) == -signal.SIGKILL
    assert fake_servers() == []


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_foreground_server_gets_signals_itself_and_has_its_own_exit_code(home, sent):
    process = foreground(home, FAKE_EXIT="7")
    process.send_signal(sent)
    assert process.wait(DEADLINE) == 7
    assert (home / "signals").read_text() == f"{sent.name} "


def test_a_signal_that_comes_before_the_server_listens_is_not_lost(home):
    process = start_launcher(home, "--foreground", FAKE="slow", FAKE_EXIT="7")
    wait_for((home / "pid").exists)
    process.send_signal(signal.SIGTERM)
    (home / "go on").touch()
    assert process.wait(DEADLINE) == 7
    assert (home / "signals").read_text() == "SIGTERM "


def test_a_second_start_in_the_foreground_tells_who_is_running(home, capsys):
    server = foreground(home)
    assert launch(home, "--foreground", "--model-store", "store") == 1
    assert (
        f"It is process {server.pid} at http://127.0.0.1:0, started in {home}, running since 20"
        in capsys.readouterr().out
    )


def test_stop_ends_a_foreground_server(home, capsys):
    server = foreground(home)
    assert launch(home, "--stop") == 0
    assert server.wait(DEADLINE) == 0
    assert capsys.readouterr().out == "TorchServe has stopped.\n"
    assert [path.name for path in home.glob("pid*")] == []


# The rest


@pytest.mark.parametrize("flag", ["-v", "--version", "--vers"])
def test_version(capsys, flag):
    assert main([flag]) == 0
    assert capsys.readouterr().out == f"TorchServe Version is 0.12.0\ntorchserve-py {__version__}\n"


def test_print_config_starts_nothing(home, capsys):
    assert main(["--print-config", "--start", "--model-store", "store"]) == 0
    assert f"{home / 'store'}" in capsys.readouterr().out
    assert not (home / "pid").exists()


def test_print_config_of_a_wrong_configuration(home, capsys):
    (home / "config.properties").write_text("debug=maybe")
    assert main(["--print-config"]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Missing mandatory parameter --model-store",
        "Invalid configuration: config.properties:1: debug = maybe: it must be true or false",
    ]


@pytest.mark.parametrize("arguments", [["--print-config", "--model-store", "store"], ["--schema", "model-config"]])
def test_a_reader_that_closes_the_pipe_ends_the_command_quietly(home, arguments):
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "import sys; from torchserve_py.cli import main; sys.exit(main())", *arguments]
    with open(writing, "wb") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, timeout=DEADLINE, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")


@pytest.mark.parametrize("argv", [["--start", "--stop"], ["--model", "x"], ["--no-such-flag"]])
def test_a_wrong_command_line(argv, capsys):
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert "usage: torchserve-py" in capsys.readouterr().err


def test_prefixes_of_flags_are_accepted(home):
    start(home, "--star", "--no-config", "--dis", "--enable", "--work", "store")


def test_the_pid_file_is_where_torchserve_keeps_it():
    import tempfile

    assert ServerLauncher([]).pid_path == Path(tempfile.gettempdir()) / ".model_server.pid"
