"""What the server keeps to itself, and what it does not let a worker have."""

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

HANDLER = """
import json
import os


def handle(data, context):
    if data is None:
        return None
    if data[0]["body"] == "much":
        return [str(len(bytearray(1 << 30)))] * len(data)
    if data[0]["body"] == "rights":
        return [open("/proc/self/status").read()] * len(data)
    if data[0]["body"] == "environment":
        return [json.dumps(dict(os.environ))] * len(data)
    if data[0]["body"] == "fail":
        raise ValueError("wrong")
    return [row["body"] for row in data]
"""
SECRET_BODY = "the-patient-has-a-cold"
SECRET_HEADER = "cookie-monster-0815"
SECRET_PASSWORD = "open-sesame-4711"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "m", HANDLER)
    properties = {
        "access_log": "true",
        "log_format": "json",
        "keystore_pass": SECRET_PASSWORD,
        "worker_memory_limit": 600,
        "allowed_urls": "http://.*",
    }
    environment = {"TORCHSERVE_PY_KEY": SECRET_HEADER, "TS_KEYSTORE_PASS": SECRET_PASSWORD}
    made = RunningServer({"m": folder}, properties, environment, flags=("--enable-model-api",))
    before = os.umask(0)  # the most careless one
    try:
        made.start()
    finally:
        os.umask(before)
    try:
        yield made
    finally:
        made.__exit__()


def keys(server: RunningServer) -> dict[str, str]:
    content = json.loads((server.directory / "key_file.json").read_text())
    return {name: entry["key"] for name, entry in content.items()}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_no_log_holds_a_secret(server: RunningServer) -> None:
    known = keys(server)
    headers = {**bearer(known["inference"]), "Cookie": SECRET_HEADER}
    assert server.predict("m", SECRET_BODY, headers=headers).text == SECRET_BODY
    assert server.predict("m", "fail", headers=headers).status_code == 503
    assert server.predict("m", SECRET_BODY, headers={**headers, **bearer("guess-" + SECRET_HEADER)}).status_code == 400
    assert server.predict("ghost", SECRET_BODY, headers=headers).status_code == 404
    url = f"http://user:{SECRET_PASSWORD}@127.0.0.1:9/x.mar"
    registered = requests.post(
        f"{server.management}/models", data={"url": url}, headers=bearer(known["management"]), timeout=DEADLINE
    )
    assert registered.status_code == 400
    in_query = requests.post(
        f"{server.management}/models", params={"url": url}, headers=bearer(known["management"]), timeout=DEADLINE
    )
    assert in_query.status_code == 400
    rotated = requests.get(
        f"{server.management}/token", params={"type": "inference"}, headers=bearer(known["API"]), timeout=DEADLINE
    )
    assert rotated.status_code == 200
    access_log = server.directory / "logs" / "access_log.log"
    eventually(lambda: "/token" in access_log.read_text(), "the last request is in the access log")
    secrets = [SECRET_BODY, SECRET_HEADER, SECRET_PASSWORD, *known.values(), *keys(server).values()]
    logs = [path for path in (server.directory / "logs").rglob("*") if path.is_file()]
    written = {path: path.read_text(errors="replace") for path in (*logs, server.output)}
    assert any("ghost" in text for text in written.values()), "the logs are those that were meant"
    found = [(path.name, secret) for path, text in written.items() for secret in secrets if secret in text]
    assert found == []


def test_what_a_handler_logs_names_its_request(server: RunningServer) -> None:
    answer = server.predict("m", "fail", headers=bearer(keys(server)["inference"]))
    assert answer.status_code == 503
    about = answer.headers["x-request-id"]

    def logged() -> list[dict[str, object]]:
        records = [json.loads(line) for line in server.model_log().splitlines() if about in line]
        return [each for each in records if each["logger"] == "MODEL_LOG"]

    (record,) = eventually(logged, "the record of the failure is in the model log")
    assert (record["request_id"], record["level"]) == (about, "WARN")
    assert str(record["exception"]).endswith("ValueError: wrong")
    assert "\x1e" not in server.model_log()


def test_the_key_file_and_snapshots_are_for_the_servers_user_alone(server: RunningServer) -> None:
    private = [server.directory / "key_file.json", *(server.directory / "logs" / "config").glob("*.cfg")]
    assert [stat.S_IMODE(path.stat().st_mode) for path in private] == [0o600] * len(private)


def test_logs_are_for_the_servers_user_and_its_group_whatever_its_umask(server: RunningServer) -> None:
    logs = server.directory / "logs"
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (logs, *logs.rglob("*"))}
    files = {path.name: mode for path, mode in modes.items() if path.is_file()}
    assert {"ts_log.log", "model_log.log", "access_log.log", "ts_metrics.log", "model_metrics.log"} <= files.keys()
    assert {name: oct(mode) for name, mode in files.items() if mode & ~0o640} == {}
    assert modes[logs] == 0o751
    assert {path.name: oct(mode) for path, mode in modes.items() if mode & 0o022} == {}


def test_workers_have_no_keys_and_passwords_of_the_server(server: RunningServer) -> None:
    assert {"TORCHSERVE_PY_KEY", "TS_KEYSTORE_PASS"} <= server.server.environ().keys()
    found = server.predict("m", "environment", headers=bearer(keys(server)["inference"])).json()
    (worker,) = server.workers()
    for variables in (found, worker.environ()):
        assert "PATH" in variables
        assert not {"TORCHSERVE_PY_KEY", "TS_KEYSTORE_PASS"} & variables.keys()
        assert not {SECRET_HEADER, SECRET_PASSWORD} & set(variables.values())


def test_the_console_does_not_show_the_password_of_a_store(server: RunningServer, tmp_path: Path) -> None:
    url = f"redis://user:{SECRET_PASSWORD}@127.0.0.1:6379/0"
    config = f"sequenceBatching: true\nsequenceMaxIdleMSec: 60000\nhandler: {{cache: {{store: redis, url: '{url}'}}}}\n"
    stored = model_folder(tmp_path, "stored", HANDLER, config)
    management = bearer(keys(server)["management"])
    query: dict[str, Any] = {"url": str(stored), "model_name": "stored", "initial_workers": 0}
    assert requests.post(f"{server.management}/models", params=query, headers=management, timeout=DEADLINE).ok
    address = f"{server.management}/console/api/models/stored/1.0"
    with requests.get(address, headers=management, stream=True, timeout=DEADLINE) as shown:
        event = next(line for line in shown.iter_lines(decode_unicode=True) if line.startswith("data:"))
    assert SECRET_PASSWORD not in event
    cache = json.loads(event.removeprefix("data:"))["config"]["handler"]["cache"]
    assert (cache["store"], cache["url"]) == ("redis", "redis://***@127.0.0.1:6379/0")


def test_a_handler_that_wants_too_much_memory_fails_alone(server: RunningServer) -> None:
    headers = bearer(keys(server)["inference"])
    (worker,) = server.workers()
    assert server.predict("m", "much", headers=headers).status_code == 507
    assert server.predict("m", "less", headers=headers).text == "less"
    assert [each.pid for each in server.workers()] == [worker.pid]


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such thing")
def test_a_worker_cannot_gain_rights(server: RunningServer) -> None:
    status = server.predict("m", "rights", headers=bearer(keys(server)["inference"])).text
    assert "NoNewPrivs:\t1\n" in status


def test_a_server_that_cannot_confine_its_workers_does_not_start(tmp_path: Path) -> None:
    server = RunningServer({}, {"worker_user": "no-such-user"})
    try:
        server.launch()
        assert server.process is not None
        assert server.process.wait(DEADLINE) == 1
        assert "worker_user = no-such-user: there is no such user on this machine" in server.log()
    finally:
        server.__exit__()
