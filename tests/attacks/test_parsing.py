"""Bodies, files and numbers that were to keep the event loop busy: it reads only what routing needs, within bounds."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from tests.attacks.watching import Watch
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder

SIZE = 16_000_000
LISTS = b"[]," * (SIZE // 3) + b"1"
ECHO = "def handle(data, context):\n    return data and [b'' for _ in data]\n"
STATEFUL = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"
TRUSS = "class Model:\n    def predict(self, body):\n        return body\n\n    chat_completions = predict\n"
JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}
FIELD = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\nghost\r\n'

#: Path, headers, body, the status of the answer and a word of it.
BODIES = {
    "form-of-empty-fields": ("/invocations", FORM, b"&" * SIZE + b"model_name=ghost", 404, "ghost"),
    "form-of-small-fields": ("/invocations", FORM, b"a=b&" * (SIZE // 4) + b"model_name=ghost", 404, "ghost"),
    "form-of-escapes": ("/invocations", FORM, b"%61=%62&" * (SIZE // 8), 400, "model_name"),
    "form-of-empty-names": ("/invocations", FORM, b"model_name=&" * (SIZE // 12), 400, "model_name"),
    "form-with-a-long-name": ("/invocations", FORM, b"model_name=" + b"%41" * (SIZE // 3), 404, "AAA"),
    "multipart-of-small-parts": ("/invocations", MULTIPART, FIELD % b"x" * (SIZE // 60), 400, "first 100"),
    "multipart-of-boundaries": ("/invocations", MULTIPART, b"--b\r\n" * (SIZE // 5), 400, "Malformed"),
    "multipart-of-one-header": ("/invocations", MULTIPART, b"--b\r\n" + b"a:b\r\n" * (SIZE // 5), 400, "Malformed"),
    "multipart-of-carriage-returns": ("/invocations", MULTIPART, b"--b\r\n\r\n" + b"\r" * SIZE, 400, "Malformed"),
    "open-inference-lists": (
        "/v2/models/stateful/infer",
        JSON,
        b'{"inputs": [' + LISTS + b'], "parameters": {"sequence_id": 7}}',
        400,
        "is not open",
    ),
    "open-inference-keys": (
        "/v2/models/stateful/infer",
        JSON,
        b"{" + b'"":{},' * (SIZE // 6) + b'"parameters": {"sequence_id": 7}}',
        400,
        "is not open",
    ),
    "open-inference-parameters": (
        "/v2/models/stateful/infer",
        JSON,
        b'{"parameters": {"sequence_id": 7, "x": [' + LISTS + b"]}}",
        400,
        "more than 65536",
    ),
    "open-inference-depth": (
        "/v2/models/stateful/infer",
        JSON,
        b'{"inputs": ' + b"[" * (SIZE // 2) + b"]" * (SIZE // 2) + b"}",
        400,
        "recursion",
    ),
    "repository-index": ("/v2/repository/index", JSON, b'{"x": [' + LISTS + b"]}", 400, "65536 bytes"),
    "repository-load": ("/v2/repository/models/m/load", JSON, b'{"parameters": [' + LISTS + b"]}", 400, "65536 bytes"),
    "truss-named-in-the-body": (
        "/v1/chat/completions",
        JSON,
        b'{"messages": [' + LISTS + b'], "model": "ghost"}',
        404,
        "several models",
    ),
    "truss-with-objects": ("/v1/chat/completions", JSON, b"[" + b"{}," * (SIZE // 3) + b"1]", 404, "several models"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    store = tmp_path_factory.mktemp("models")
    models = {
        "echo": model_folder(store, "echo", ECHO),
        "stateful": model_folder(store, "stateful", ECHO, STATEFUL),
    }
    for name in ("one", "two"):
        folder = store / name
        (folder / "model").mkdir(parents=True)
        (folder / "config.yaml").write_text(f"model_name: {name}\n")
        (folder / "model" / "model.py").write_text(TRUSS)
        models[name] = folder
    with RunningServer(models, {"max_request_size": 2 * SIZE, "drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


@pytest.mark.parametrize("attack", BODIES.values(), ids=BODIES)
def test_a_body_does_not_keep_others_waiting(
    server: RunningServer, attack: tuple[str, dict[str, str], bytes, int, str]
) -> None:
    path, headers, body, status, word = attack
    with Watch(server):
        answer = requests.post(f"{server.inference}{path}", data=body, headers=headers, timeout=DEADLINE)
        assert (answer.status_code, word in answer.text) == (status, True), answer.text[:300]


@pytest.mark.parametrize("path", ["/models", "/workflows"])
def test_parameters_in_json_do_not_keep_others_waiting(server: RunningServer, path: str) -> None:
    with Watch(server):
        body = b'{"url": [' + LISTS + b"]}"
        answer = requests.post(f"{server.management}{path}", data=body, headers=JSON, timeout=DEADLINE)
        assert (answer.status_code, "65536 bytes" in answer.text) == (400, True), answer.text[:300]


MEGABYTE = 1 << 20
FILES = {
    "yaml-list": ("model-config.yaml", b"a: [" + b"x," * (MEGABYTE // 2 - 4) + b"]"),
    "yaml-aliases": (
        "model-config.yaml",
        b"a0: &a0 [x]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (i, i, i - 1, i - 1) for i in range(1, 60)),
    ),
    "yaml-depth": ("model-config.yaml", b"a: " + b"[" * (MEGABYTE - 8)),
    "yaml-merges": ("model-config.yaml", b"a: &a {b: 1}\n" + b"c: {<<: [" + b"*a, " * (MEGABYTE // 5) + b"]}\n"),
    "mlserver-settings": (
        "model-settings.json",
        b'{"implementation": "model.M", "inputs": [' + b"0," * (MEGABYTE // 2 - 40) + b"0]}",
    ),
    "mlserver-keys": (
        "model-settings.json",
        b'{"name": "a\\nb",' + b",".join(b'"%d":0' % i for i in range(90_000)) + b', "implementation": "model.M"}',
    ),
    "truss": ("config.yaml", b"secrets: [" + b"x," * (MEGABYTE // 2 - 8) + b"]"),
}


@pytest.mark.parametrize("attack", FILES.values(), ids=FILES)
def test_a_file_of_a_model_does_not_keep_others_waiting(
    server: RunningServer, attack: tuple[str, bytes], tmp_path: Path
) -> None:
    name, content = attack
    folder = model_folder(tmp_path, "attacker", ECHO)
    if name != "model-config.yaml":
        (folder / "handler.py").unlink()
        (folder / "model").mkdir()
        (folder / "model" / "model.py").write_text(TRUSS)
    (folder / name).write_bytes(content)
    with Watch(server), ThreadPoolExecutor(4) as clients:
        for answer in clients.map(lambda _: server.register(folder), range(4)):
            assert answer.status_code == 400, answer.text[:300]
            assert len(answer.content) < 4 * MEGABYTE


@pytest.mark.parametrize("count", [1001, 1_000_000_000_000, 10**17])
def test_a_number_of_workers_that_no_machine_has_is_refused(server: RunningServer, count: int, tmp_path: Path) -> None:
    with Watch(server):
        assert server.scale("echo", count).status_code == 400
        folder = model_folder(tmp_path, "many", ECHO)
        assert server.register(folder, initial_workers=count).status_code == 400
        (folder / "model-config.yaml").write_text(f"minWorkers: {min(count, 2**31 - 1)}\n")
        query = {"url": str(folder)}
        assert requests.post(f"{server.management}/models", params=query, timeout=DEADLINE).status_code == 400
