"""What the start would open is opened by ``--check-config``, and by the start before any model is loaded."""

import socket
import subprocess
from pathlib import Path

import pytest
from tests.e2e.running_server import HANDLERS, RunningServer

from torchserve_py.cli import main


@pytest.fixture
def taken():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TS_CONFIG_FILE", raising=False)
    return tmp_path


def check(home, capsys, **changes):
    """Check a configuration whose ports are free; return the exit code and what was said."""
    addresses = {f"{name}_address": "http://127.0.0.1:0" for name in ("inference", "management", "metrics")}
    ports = {"grpc_inference_port": 0, "grpc_management_port": 0}
    lines = [f"{key}={value}\n" for key, value in {**addresses, **ports, **changes}.items()]
    (home / "config.properties").write_text("".join(lines))
    code = main(["--check-config", "--model-store", "store"])
    return code, capsys.readouterr().out


def test_a_configuration_that_can_be_opened_passes(home, capsys):
    assert check(home, capsys)[0] == 0
    assert check(home, capsys, inference_address="https://127.0.0.1:0")[0] == 0
    assert check(home, capsys, inference_address=f"unix:{home}/server.sock")[0] == 0
    assert not (home / "server.sock").exists()


@pytest.mark.parametrize("setting", ["inference_address", "metrics_address", "grpc_management_port"])
def test_an_address_that_is_taken(home, capsys, taken, setting):
    value = taken if setting.endswith("_port") else f"http://127.0.0.1:{taken}"
    code, said = check(home, capsys, **{setting: value})
    assert code == 1
    assert f"{setting}: cannot listen at" in said
    assert "in use" in said


def test_one_port_for_two_kinds_of_requests(home, capsys):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code, said = check(home, capsys, inference_address=f"http://127.0.0.1:{port}", grpc_inference_port=port)
    assert code == 1
    assert f"grpc_inference_port: cannot listen at 127.0.0.1:{port}" in said


def test_a_unix_socket_where_none_can_be(home, capsys):
    (home / "file").touch()
    code, said = check(home, capsys, inference_address=f"unix:{home}/file")
    assert (code, "there is something else than a socket" in said) == (1, True)
    code, said = check(home, capsys, inference_address=f"unix:{home}/no/server.sock")
    assert (code, f"the folder {home}/no cannot be written to" in said) == (1, True)


def test_all_that_cannot_be_opened_is_told_at_once(home, capsys, taken):
    (home / "store.p12").write_text("nothing")
    (home / "key.pem").write_text("nothing")
    code, said = check(
        home,
        capsys,
        inference_address="https://127.0.0.1:0",
        keystore="store.p12",
        keystore_type="JKS",
        enable_grpc_ssl="true",
        private_key_file="key.pem",
        certificate_file="key.pem",
        management_address=f"http://127.0.0.1:{taken}",
    )
    assert code == 1
    for what in ("keystore ", "certificate_file ", "management_address: cannot listen"):
        assert what in said


def test_a_start_says_no_before_models_are_loaded(tmp_path: Path):
    (tmp_path / "store.p12").write_text("nothing")
    properties = {"inference_address": "https://127.0.0.1:0", "keystore": tmp_path / "store.p12"}
    server = RunningServer({"echo": HANDLERS / "echo"}, properties)
    done = subprocess.run(
        server.command,
        cwd=server.directory,
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1
    assert f"The server cannot run: keystore {tmp_path / 'store.p12'} cannot be read" in done.stdout
    assert "W-9000" not in done.stdout
