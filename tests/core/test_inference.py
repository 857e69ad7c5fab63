"""Predictions as a TorchServe user makes them: which handlers there are, what they get, what is refused before them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.running_server import RunningServer, model_folder

#: Tells what it got: each value of the row with its type, the request's headers and the batch's size.
ROWS = """
class TellingHandler:
    def initialize(self, context):
        self.batch_size = context.system_properties["batch_size"]

    def handle(self, data, context):
        return [
            {
                "row": {key: [type(value).__name__, self.shown(value)] for key, value in row.items()},
                "headers": context.get_all_request_header(index),
                "request_id": context.get_request_id(index),
                "url_path": context.get_request_header(index, "url_path"),
                "explain": context.get_request_header(index, "explain"),
                "batch_size": self.batch_size,
            }
            for index, row in enumerate(data)
        ]

    @staticmethod
    def shown(value):
        return value.hex() if isinstance(value, (bytes, bytearray)) else value
"""

#: TorchServe's function handler: called with None once, to load.
FUNCTION = """
loaded = []


def handle(data, context):
    if not data:
        loaded.append(context.model_name)
        return None
    return [f"{loaded} {row['body']}" for row in data]
"""

NAMED_FUNCTION = """
class NotMeant:
    pass


class NorThis:
    pass


def answer(data, context):
    return None if data is None else ["forty-two"] * len(data)
"""

ECHO = """
def handle(data, context):
    return None if data is None else [row["body"] for row in data]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "rows": model_folder(folder, "rows", ROWS),
        "function": model_folder(folder, "function", FUNCTION),
        "echo": model_folder(folder, "echo", ECHO),
    }
    properties = {"max_request_size": 6_000_000, "max_response_size": 6_000_000, "drain_timeout": 1}
    with RunningServer(models, properties) as running:
        running.wait_ready()
        yield running


def tell(server: RunningServer, body: bytes | str = b"", path: str = "rows", **more: Any) -> dict[str, Any]:
    response = requests.post(f"{server.inference}/predictions/{path}", data=body, timeout=180, **more)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    return told


# What the handler gets


@pytest.mark.parametrize(
    ("content_type", "body", "row"),
    [
        ("application/json", b'{"a": [1, 2.5, null]}', ["dict", {"a": [1, 2.5, None]}]),
        ("application/json; charset=utf-8", b"[1]", ["list", [1]]),
        ("application/json", b"{broken", ["bytearray", b"{broken".hex()]),
        ("text/plain", "grüß".encode(), ["str", "grüß"]),
        ("text/csv", b"1,2", ["str", "1,2"]),
        ("text/plain", b"\xff\xfe", ["bytearray", "fffe"]),
        ("application/octet-stream", b"\x00\xff", ["bytearray", "00ff"]),
        ("image/jpeg", b"\x00", ["bytearray", "00"]),
        (None, b"plain", ["bytearray", b"plain".hex()]),
        (None, b"", ["bytearray", ""]),
    ],
)
def test_a_body_is_decoded_by_its_content_type(
    server: RunningServer, content_type: str | None, body: bytes, row: list[Any]
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    assert tell(server, body, headers=headers)["row"] == {"body": row}


def test_a_form_has_one_key_per_field(server: RunningServer) -> None:
    told = tell(server, "a=1&b=two+words&c=%C3%A9", headers={"content-type": "application/x-www-form-urlencoded"})
    expected = {"a": b"1".hex(), "b": b"two words".hex(), "c": "é".encode().hex()}
    assert told["row"] == {key: ["bytearray", value] for key, value in expected.items()}


def test_a_multipart_form_has_files_with_types_and_fields_without(server: RunningServer) -> None:
    files = {
        "data": ("x.json", b'{"n": 1}', "application/json"),
        "note": ("n.txt", b"hello", "text/plain"),
        "image": ("i.bin", b"\x00\x01", "application/octet-stream"),
        "field": (None, b"value"),
    }
    told = tell(server, b"", files=files)
    assert told["row"] == {
        "data": ["dict", {"n": 1}],
        "note": ["str", "hello"],
        "image": ["bytearray", "0001"],
        "field": ["bytearray", b"value".hex()],
    }
    assert told["headers"]["data"] == {"content-type": "application/json"}
    assert told["headers"]["field"] == {"content-type": ""}


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary=b"])
def test_a_broken_multipart_form_is_refused(server: RunningServer, content_type: str) -> None:
    response = server.predict("rows", b"not a form", headers={"content-type": content_type})
    assert response.status_code == 400
    assert "multipart/form-data" in response.json()["message"]
    assert tell(server, b"")["row"] == {"body": ["bytearray", ""]}


def test_headers_reach_the_handler_as_they_were_sent(server: RunningServer) -> None:
    told = tell(server, b"x", headers={"X-Mixed-Case": "kept", "x-request-id": "mine", "Content-Type": "image/png"})
    assert told["headers"]["X-Mixed-Case"] == "kept"
    assert told["headers"]["x-request-id"] == "mine"
    assert told["headers"]["body"] == {"content-type": "image/png"}
    assert told["request_id"] != "mine"


def test_the_request_id_goes_back_to_the_client(server: RunningServer) -> None:
    response = server.predict("rows", b"")
    assert response.headers["x-request-id"] == response.json()["request_id"]


def test_the_query_is_ignored_and_the_rest_of_the_path_is_url_path(server: RunningServer) -> None:
    told = tell(server, b"", path="rows/1.0/v1/completions?body=no&other=1")
    assert told["row"] == {"body": ["bytearray", ""]}
    assert told["url_path"] == "v1/completions"
    assert tell(server, b"")["url_path"] == ""


def test_explanations_set_the_explain_header(server: RunningServer) -> None:
    told = requests.post(f"{server.inference}/explanations/rows", data=b"", timeout=180).json()
    assert told["explain"] == "True"
    assert tell(server)["explain"] == "False"


def test_other_methods_predict_too(server: RunningServer) -> None:
    for method in ("GET", "PUT"):
        response = requests.request(method, f"{server.inference}/predictions/rows", timeout=180)
        assert response.json()["row"] == {"body": ["bytearray", ""]}
    assert requests.head(f"{server.inference}/predictions/rows", timeout=180).status_code == 200


# Kinds of handlers


def test_a_function_handler_is_called_once_to_load(server: RunningServer) -> None:
    assert [server.predict("function", text).text for text in "ab"] == ["['function'] a", "['function'] b"]


def test_a_named_function_is_the_entry_point(server: RunningServer, tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "named", NAMED_FUNCTION)
    parameters: dict[str, str | int] = {"url": str(folder), "handler": "handler:answer", "initial_workers": 1}
    registered = requests.post(f"{server.management}/models", params=parameters, timeout=180)
    assert registered.status_code == 200, registered.text
    assert server.predict("named").text == "forty-two"


# What goes wrong


def error(response: requests.Response) -> tuple[int, str, str]:
    body = response.json()
    assert response.headers["content-type"] == "application/json"
    assert body["code"] == response.status_code
    assert list(body) == ["code", "type", "message"]
    return response.status_code, body["type"], body["message"]


def test_unknown_paths_models_and_versions(server: RunningServer) -> None:
    def get(path: str) -> tuple[int, str, str]:
        return error(requests.get(f"{server.inference}{path}", timeout=180))

    nothing = "Requested resource is not found, please refer to API document."
    assert get("/predictions/ghost") == (404, "ModelNotFoundException", "Model not found: ghost")
    assert get("/predictions/rows/9.9") == (
        404,
        "ModelVersionNotFoundException",
        "Model version: 9.9 does not exist for model: rows",
    )
    for path in ("/predictions", "/nowhere", "/predictions/"):
        assert get(path) == (404, "ResourceNotFoundException", nothing)


def test_a_body_that_is_too_large_is_refused(server: RunningServer) -> None:
    response = server.predict("echo", b"x" * 6_000_001)
    assert (response.status_code, response.content) == (413, b"")
    assert server.predict("echo", b"small").content == b"small"


def test_a_chunked_body_that_is_too_large_is_refused(server: RunningServer) -> None:
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H", "Transfer-Encoding: chunked"]
    command += ["-T", "-", f"{server.inference}/predictions/echo"]
    done = subprocess.run(command, input=b"x" * 6_100_000, capture_output=True, timeout=180, check=False)
    assert done.stdout == b"413"


def test_five_megabytes_go_both_ways(server: RunningServer) -> None:
    body = bytes(range(256)) * 20_000
    response = server.predict("echo", body, headers={"content-type": "application/octet-stream"})
    assert response.content == body


def test_curl_uploads_a_file(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "upload.txt"
    file.write_bytes(b"from a file")
    command = ["curl", "-sS", "-i", f"{server.inference}/predictions/echo", "-T", str(file)]
    done = subprocess.run(command, capture_output=True, timeout=180, check=True)
    head, _, body = done.stdout.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"from a file"


READS_JSON = """
def handle(data, context):
    return [] if data is None else [{"sum": sum(row["body"]["inputs"][0]["data"])} for row in data]
"""


def test_a_handler_may_read_open_inference_requests_itself(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "totals", READS_JSON, "openInferenceRows: body")
    request = {"inputs": [{"name": "x", "shape": [3], "datatype": "INT64", "data": [1, 2, 3]}]}
    with RunningServer({"totals": folder}) as server:
        server.wait_ready()
        answer = requests.post(f"{server.inference}/v2/models/totals/infer", json=request, timeout=180)
    assert (answer.status_code, answer.json()) == (200, {"sum": 6})
