"""The REST surfaces of a running server, spoken to by clients that users have: requests, curl, an OpenAPI validator."""

import json
import socket
import ssl
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from openapi_spec_validator import validate
from tests.e2e.running_server import RunningServer, model_folder
from tests.ports import free_ports

#: Answers with what a handler is given for its row: the decoded values, and the headers that the server sets.
SHOW = """
def handle(data, context):
    if data is None:
        return None
    return [
        {
            "row": {name: repr(value) for name, value in row.items()},
            "explain": context.get_request_header(index, "explain"),
            "url_path": context.get_request_header(index, "url_path"),
        }
        for index, row in enumerate(data)
    ]
"""

#: Doubles each instance; the envelope does the rest.
DOUBLE = """
def handle(data, context):
    if data is None:
        return None
    return [[2 * each for each in row["data"]] if isinstance(row, dict) else row * 2 for row in data]
"""

TIMEOUT = 60
CROSS_ORIGIN = {
    "cors_allowed_origin": "https://example.org",
    "cors_allowed_methods": "GET, POST, PUT, OPTIONS",
    "cors_allowed_headers": "X-Custom-Header, Authorization",
}


def curl(*arguments: str) -> tuple[int, str]:
    """Return status and body of an answer to curl."""
    command = ["curl", "--silent", "--show-error", "--max-time", str(TIMEOUT), "--write-out", "\n%{http_code}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
    body, _, status = done.stdout.rpartition("\n")
    return int(status), body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = model_folder(tmp_path_factory.mktemp("models"), "show", SHOW)
    properties = {"drain_timeout": 1, "ts_open_inference_protocol": "true", **CROSS_ORIGIN}
    with RunningServer({"show": folder}, properties) as running:
        running.wait_ready()
        yield running


def test_kserve_paths(server: RunningServer) -> None:
    shown = {}
    for path in (
        "/v1/models/show:predict",
        "/v1/models/show:explain",
        "/v2/models/show/explain",
    ):
        answer = requests.post(f"{server.inference}{path}?ignored=1", json={"instances": [1]}, timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        assert answer.json()["row"] == {"body": "{'instances': [1]}"}
        shown[path.rpartition("/")[2].rpartition(":")[2]] = answer.json()["explain"]
    assert shown == {"predict": "False", "explain": "True"}


def test_kserve_readiness_is_on_both_ports(server: RunningServer) -> None:
    path = "/v1/models/show"
    assert requests.get(f"{server.management}{path}", timeout=TIMEOUT).json() == {"name": "show", "ready": True}
    answer = requests.get(f"{server.inference}{path}", timeout=TIMEOUT).json()
    assert (answer["name"], answer["ready"]) == ("show", True)


def test_sagemaker_and_legacy_paths_take_the_query_for_parameters(server: RunningServer) -> None:
    for path in ("/invocations", "/models/show/invoke", "/show/predict", "/show/1.0/predict"):
        url = f"{server.inference}{path}?k=3&text=a%20b"
        status, body = curl("-H", "Content-Type: application/json", "-d", "[1]", url)
        assert status == 200, body
        assert json.loads(body) == {
            "row": {"k": "bytearray(b'3')", "text": "bytearray(b'a b')", "body": "[1]"},
            "explain": "False",
            "url_path": None,
        }


def test_forms_beside_the_query(server: RunningServer, tmp_path: Path) -> None:
    sample = tmp_path / "sample.txt"
    sample.write_text("sample")
    status, body = curl(
        "-F", f"data=@{sample};type=text/plain", "-F", "k=2", f"{server.inference}/show/predict?k=1&q=0"
    )
    assert status == 200
    assert json.loads(body)["row"] == {"k": "bytearray(b'2')", "q": "bytearray(b'0')", "data": "'sample'"}
    status, body = curl("-d", "data=sample", f"{server.inference}/invocations?model_name=show")
    assert status == 200
    assert json.loads(body)["row"] == {"model_name": "bytearray(b'show')", "data": "bytearray(b'sample')"}


def test_predictions_have_a_url_path_and_no_query(server: RunningServer) -> None:
    url = f"{server.inference}/predictions/show/1.0/v1/chat/completions?ignored=1"
    shown = requests.post(url, json={"a": 1}, timeout=TIMEOUT).json()
    assert shown == {"row": {"body": "{'a': 1}"}, "explain": "False", "url_path": "v1/chat/completions"}


def test_open_inference_endpoints(server: RunningServer) -> None:
    assert requests.get(f"{server.inference}/v2/health/live", timeout=TIMEOUT).json() == {"live": True}
    assert requests.get(f"{server.inference}/v2/health/ready", timeout=TIMEOUT).json() == {"ready": True}
    assert requests.get(f"{server.inference}/v2", timeout=TIMEOUT).json()["extenstion"] == ["kserve", "kubeflow"]


def test_which_model_an_invocation_means(server: RunningServer, tmp_path: Path) -> None:
    other = model_folder(tmp_path, "other", SHOW)
    assert server.register(other, model_name="other").status_code == 200
    try:
        invocations = f"{server.inference}/invocations"
        # Only one of the two was loaded at start-up.
        assert requests.post(invocations, data=b"", timeout=TIMEOUT).status_code == 200
        ghost = requests.post(invocations, params={"model_name": "ghost"}, timeout=TIMEOUT)
        assert (ghost.status_code, ghost.json()["message"]) == (404, "Model not found: ghost")
        assert requests.post(invocations, params={"model_name": "other"}, timeout=TIMEOUT).status_code == 200
    finally:
        server.unregister("other")


@pytest.mark.parametrize(("path", "method"), [("/", "OPTIONS"), ("/api-description", "GET")])
def test_openapi_documents_of_the_listeners(server: RunningServer, path: str, method: str) -> None:
    for base, expected in (
        (server.inference, "/predictions/{model_name}"),
        (server.management, "/models/{model_name}"),
        (server.metrics, "/metrics"),
    ):
        status, body = curl("-X", method, f"{base}{path}")
        document = json.loads(body)
        validate(document)
        assert (status, document["info"]["title"]) == (200, "TorchServe APIs")
        assert expected in document["paths"]


def test_openapi_documents_of_a_model(server: RunningServer) -> None:
    for url, title in (
        (f"{server.inference}/predictions/show", "RESTful API for: show"),
        (f"{server.management}/models/show", "RESTful Management API for: show"),
    ):
        document = requests.options(url, timeout=TIMEOUT).json()
        validate(document)
        assert document["info"]["title"] == title


def test_browsers_of_the_allowed_origin_may_ask_and_call(server: RunningServer) -> None:
    url = f"{server.inference}/predictions/show"
    asking = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    for answer in (
        requests.options(url, headers=asking, timeout=TIMEOUT),
        requests.post(url, headers={"Origin": "https://example.org"}, timeout=TIMEOUT),
        requests.get(f"{server.management}/models", timeout=TIMEOUT),
    ):
        assert answer.status_code == 200
        headers = {name.lower(): value for name, value in answer.headers.items()}
        assert {key: headers[key] for key in headers if key.startswith("access-control-")} == {
            "access-control-allow-origin": CROSS_ORIGIN["cors_allowed_origin"],
            "access-control-allow-methods": CROSS_ORIGIN["cors_allowed_methods"],
            "access-control-allow-headers": CROSS_ORIGIN["cors_allowed_headers"],
        }


@pytest.mark.parametrize(
    ("envelope", "request_body", "answered"),
    [
        ("json", {"instances": [1, "a"]}, {"predictions": [2, "aa"]}),
        ("kserve", {"instances": [[1], 2]}, {"predictions": [[1, 1], 4]}),
        (
            "kservev2",
            {"id": "7", "inputs": [{"name": "i", "datatype": "INT32", "shape": [2], "data": [1, 2]}]},
            {
                "id": "7",
                "model_name": "double",
                "model_version": "1.0",
                "outputs": [{"name": "i", "datatype": "INT64", "data": [2, 4], "shape": [2]}],
            },
        ),
    ],
)
def test_envelopes_of_a_server(tmp_path: Path, envelope: str, request_body: Any, answered: Any) -> None:
    folder = model_folder(tmp_path, "double", DOUBLE, "batchSize: 4\nmaxBatchDelay: 200\n")
    path = "/v2/models/double/infer" if envelope == "kservev2" else "/v1/models/double:predict"
    with RunningServer({"double": folder}, {"drain_timeout": 1, "service_envelope": envelope}) as server:
        server.wait_ready()
        answer = requests.post(f"{server.inference}{path}", json=request_body, timeout=TIMEOUT)
        assert (answer.status_code, answer.json()) == (200, answered)
        assert answer.headers["Content-Type"] == "application/json"
        refused = requests.post(f"{server.inference}{path}", json={"wrong": 1}, timeout=TIMEOUT)
        assert (refused.status_code, list(refused.json())) == (400, ["error"])


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """https for inference and management, with the certificate that the server makes for itself."""
    folder = model_folder(tmp_path_factory.mktemp("models"), "show", SHOW)
    inference, management = (f"https://127.0.0.1:{port}" for port in free_ports(2))
    properties = {"drain_timeout": 1, "inference_address": inference, "management_address": management}
    with RunningServer({"show": folder}, properties) as running:
        running.inference, running.management = inference, management
        yield running


@pytest.fixture(scope="module")
def certificate(tls_server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's certificate in a file, for clients to trust."""
    port = int(tls_server.inference.rpartition(":")[2])
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_text(ssl.get_server_certificate(("127.0.0.1", port), timeout=TIMEOUT))
    return path


def test_requests_over_tls(tls_server: RunningServer, certificate: Path) -> None:
    trusting = {"verify": str(certificate), "timeout": TIMEOUT}
    with requests.Session() as session:
        body = b"x" * 1_000_000
        url = f"{tls_server.inference}/predictions/show"
        answer = session.post(url, data=body, headers={"content-type": "application/octet-stream"}, **trusting)
        assert answer.status_code == 200, answer.text
        assert answer.json()["row"]["body"] == repr(bytearray(body))
        assert session.get(f"{tls_server.management}/models", **trusting).status_code == 200
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{tls_server.inference}/live", timeout=TIMEOUT)


def test_curl_over_tls(tls_server: RunningServer, certificate: Path) -> None:
    assert curl("--cacert", str(certificate), f"{tls_server.inference}/live")[0] == 200
    assert curl("--insecure", "--tlsv1.3", f"{tls_server.inference}/live")[0] == 200
    assert curl("--insecure", "--tls-max", "1.2", f"{tls_server.inference}/live")[0] == 200


def test_plain_http_at_a_tls_port(tls_server: RunningServer) -> None:
    plain = tls_server.inference.replace("https:", "http:")
    status, body = curl(f"{plain}/predictions/show", "-d", "x")
    assert (status, json.loads(body)) == (403, {"status": "This TorchServe instance only accepts HTTPS requests"})


def test_the_key_is_nowhere(tls_server: RunningServer) -> None:
    assert "PRIVATE KEY" not in tls_server.log()
    assert not list(tls_server.temp.glob("torchserve-tls-*"))


def test_one_shared_port_with_tokens_and_versions(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_ports(1)[0]}"
    properties = {
        "drain_timeout": 1,
        "inference_address": address,
        "management_address": address,
        "metrics_address": address,
    }
    with RunningServer({"show": model_folder(tmp_path, "show", SHOW)}, properties, flags=()) as server:
        server.inference = server.management = address
        server.wait_ready()
        keys = json.loads((server.directory / "key_file.json").read_text())

        def status(path: str, kind: str, method: str = "GET") -> int:
            headers = {"Authorization": f"Bearer {keys[kind]['key']}"}
            return requests.request(method, f"{address}{path}", headers=headers, timeout=TIMEOUT).status_code

        for path in (
            "/predictions/show/1.0",
            "/models/show/invoke",
            "/invocations",
            "/v1/models/show:predict",
            "/v1/models/show",
            "/ping",
        ):
            assert (path, status(path, "inference"), status(path, "management")) == (path, 200, 400)
        for path in ("/models/show/1.0", "/models"):
            assert (path, status(path, "management"), status(path, "inference")) == (path, 200, 400)
        assert status("/models/show/1.0/set-default", "management", "PUT") == 200
        assert status("/token?type=inference", "API") == 200
        assert requests.get(f"{address}/metrics", timeout=TIMEOUT).status_code == 200
        document = requests.options(address, timeout=TIMEOUT).json()
        validate(document)
        assert {"/predictions/{model_name}", "/models", "/metrics"} <= set(document["paths"])


def test_curl_over_a_unix_socket(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.sock" for name in ("inference", "management")}
    # Left behind by a server that was killed.
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(paths["inference"]))
    properties = {"drain_timeout": 1, **{f"{name}_address": f"unix:{path}" for name, path in paths.items()}}
    with RunningServer({"show": model_folder(tmp_path, "show", SHOW)}, properties) as server:
        assert stat.S_ISSOCK(paths["inference"].stat().st_mode)
        assert curl("--unix-socket", str(paths["inference"]), "http://localhost/live")[0] == 200
        status, body = curl("--unix-socket", str(paths["management"]), "http://localhost/models")
        assert (status, json.loads(body)["models"][0]["modelName"]) == (200, "show")
        assert server.terminate() == 0
        assert not paths["inference"].exists()
