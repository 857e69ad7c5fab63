"""Web pages of other sites and a server without keys: requests that a browser would send for them are refused."""

from collections.abc import Iterator
from pathlib import Path
from socket import gethostname

import pytest
import requests
from tests.e2e.raw_client import RawClient
from tests.e2e.running_server import DEADLINE, RunningServer, model_folder
from tests.ports import free_ports
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

ECHO = "def handle(data, context):\n    return data and ['done' for _ in data]\n"
#: Answers with a page, and the policy that the request asks for.
PAGE = """
def handle(data, context):
    if data is None:
        return None
    context.set_response_content_type(0, "text/html")
    if data[0]["body"] != "none":
        context.set_response_header(0, "Content-Security-Policy", data[0]["body"])
    return ["<script>fetch('/models')</script>"]
"""
SEQUENCES = "sequenceBatching: true\nsequenceMaxIdleMSec: 60000\n"
CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
EVIL = "http://evil.example"
FOREIGN = (
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil",
    "localhosts",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models"), "echo", ECHO, SEQUENCES)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with RunningServer({"echo": model}, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def status(address: str, path: str, method: str = "GET", **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.request(method, f"{address}{path}", headers=named, timeout=DEADLINE).status_code


def places(server: RunningServer) -> list[tuple[str, str, str]]:
    """What a page would like to ask: where, which path, and how."""
    return [
        (server.inference, "/predictions/echo", "POST"),
        (server.inference, "/v2/models/echo/infer", "POST"),
        (server.management, "/models", "GET"),
        (server.management, "/models?url=x", "POST"),
        (server.management, "/models/echo?min_worker=1", "PUT"),
        (server.management, "/models/nobody", "DELETE"),
        (server.management, "/console/models", "GET"),
        (server.metrics, "/metrics", "GET"),
    ]


def test_a_foreign_name_is_misdirected(server: RunningServer) -> None:
    for address, path, method in places(server):
        for name in FOREIGN:
            assert status(address, path, method, Host=name) == 421, (address, path, name)
    answer = requests.get(f"{server.inference}/ping", headers={"Host": "evil.example"}, timeout=DEADLINE)
    assert "allowed_hosts" in answer.json()["message"]


@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:1", f"{gethostname()}:80", "127.0.0.1", "[::1]:8080", "10.1.2.3", "a.localhost."]
)
def test_addresses_and_names_of_this_machine_are_the_servers(server: RunningServer, name: str) -> None:
    assert status(server.inference, "/ping", Host=name) == 200


def test_a_request_without_a_name_is_no_browsers(server: RunningServer) -> None:
    with RawClient(server.inference) as client:
        client.send(b"GET /ping HTTP/1.0\r\n\r\n")
        assert client.head().status == 200


def test_requests_that_a_browser_marks_are_refused(server: RunningServer) -> None:
    for address, path, method in places(server):
        assert status(address, path, method, Sec_Fetch_Site="cross-site") == 403, (address, path)
        assert status(address, path, method, Sec_Fetch_Site="same-site") == 403, (address, path)
        assert status(address, path, method, Origin=EVIL) == 403, (address, path)
        assert status(address, path, method, Origin="null") == 403, (address, path)


def test_the_servers_own_pages_and_links_to_the_console_go_on(server: RunningServer) -> None:
    own = {"Origin": server.management, "Sec_Fetch_Site": "same-origin"}
    assert status(server.management, "/models", **own) == 200
    assert status(server.management, "/models", Sec_Fetch_Site="none") == 200
    assert status(server.management, "/models", Origin=server.management) == 200
    assert status(server.management, "/console", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate") == 200


def test_pages_may_not_open_sockets(server: RunningServer) -> None:
    url = f"{server.inference.replace('http', 'ws')}/sequences/echo"
    for headers in (CROSS_SITE, {"Origin": EVIL}, {"Origin": "null"}):
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
            pass
        assert refused.value.response.status_code == 403
    with connect(url) as socket:
        assert "sequence" in str(socket.recv(DEADLINE))


def test_names_and_sites_that_the_operator_allows(model: Path) -> None:
    properties = {
        "allowed_hosts": "models.example, torchserve",
        "cors_allowed_origin": "http://app.example",
        "cors_allowed_methods": "GET, POST",
        "cors_allowed_headers": "content-type",
    }
    with RunningServer({"echo": model}, properties) as server:
        server.wait_ready()
        assert status(server.inference, "/ping", Host="Models.example:80") == 200
        assert status(server.management, "/models", Host="torchserve:8081") == 200
        assert status(server.inference, "/ping", Host="evil.example") == 421
        marks = {"Sec_Fetch_Site": "cross-site"}
        assert status(server.inference, "/ping", Origin="http://app.example", **marks) == 200
        assert status(server.inference, "/ping", Origin=EVIL, **marks) == 403


def test_names_are_checked_where_other_machines_reach_the_server_as_well(model: Path) -> None:
    with RunningServer({"echo": model}, {"inference_address": "http://0.0.0.0:0"}) as server:
        line = next(each for each in server.log().splitlines() if "inference_address: listening at" in each)
        address = f"http://127.0.0.1:{line.rpartition(':')[2]}"
        assert status(address, "/ping", Host="10.1.2.3:8080") == 200
        assert status(address, "/ping", Host="torchserve.default.svc") == 421


def test_any_name_may_be_allowed(model: Path) -> None:
    with RunningServer({"echo": model}, {"allowed_hosts": "*"}) as server:
        server.wait_ready()
        assert status(server.inference, "/ping", Host="models.example") == 200
        assert status(server.inference, "/ping", Host="models.example", Origin=EVIL) == 403


def test_what_a_model_answers_is_no_page_of_the_origin_that_has_management(tmp_path: Path) -> None:
    shown = model_folder(tmp_path, "page", PAGE)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    with RunningServer({"page": shown}, {"inference_address": address, "management_address": address}) as server:
        server.inference = server.management = address
        server.wait_ready()
        for model in ("page", "nobody"):
            headers = server.predict(model, "none").headers
            assert (headers["content-security-policy"], headers["x-content-type-options"]) == ("sandbox", "nosniff")
        assert server.predict("page", "default-src 'self'").headers["content-security-policy"] == "default-src 'self'"
        for body in ("none", "default-src 'self'"):  # the console's page has a key for management
            shown = requests.post(f"{address}/console/predictions/page/1.0", data=body, timeout=DEADLINE)
            assert (shown.status_code, shown.headers["content-type"], "<script>" in shown.text) == (
                200,
                "text/html",
                True,
            )
            headers = shown.headers
            assert (headers["content-security-policy"], headers["x-content-type-options"]) == ("sandbox", "nosniff")
        console = requests.get(f"{address}/console", timeout=DEADLINE).headers
        assert "sandbox" not in console["content-security-policy"]
        assert console["x-content-type-options"] == "nosniff"


def test_models_with_an_origin_of_their_own_may_show_pages(server: RunningServer) -> None:
    headers = server.predict("echo", sequence="s").headers
    assert not {"content-security-policy", "x-content-type-options"} & {name.lower() for name in headers}


def test_with_keys_there_is_no_such_check(model: Path) -> None:
    with RunningServer({"echo": model}, flags=()) as server:
        assert status(server.management, "/models", Host="evil.example") == 400
        assert status(server.inference, "/predictions/echo", "POST", Host="evil.example", Origin=EVIL) == 400
