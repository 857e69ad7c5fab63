"""WebSockets, with the client of the package `websockets`."""

import socket
import time

import pytest
from tests.conformance.truss.serving import Serving, Truss, is_error
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

TRUSSES = {
    "sockets": Truss("sockets:EchoSocket"),
    "plain": Truss("basics:Echo"),
    "pinging": Truss(
        "sockets:IdleSocket",
        {"runtime": {"transport": {"kind": "websocket", "ping_interval_seconds": 0.2, "ping_timeout_seconds": 5}}},
    ),
    "quiet": Truss("sockets:IdleSocket", {"runtime": {"transport": {"kind": "websocket"}}}),
    "late": Truss("loading:Health", {"environment_variables": {"GATE": "{here}/gate"}}),
}
LATE = ["late"]
DEADLINE = 60


class Counting(ClientConnection):
    """A connection that counts the pings that it gets."""

    pings = 0

    def process_event(self, event: object) -> None:
        if isinstance(event, Frame) and event.opcode is Opcode.PING:
            self.pings += 1
        super().process_event(event)  # type: ignore[arg-type]


def open_socket(serving: Serving, name: str) -> Counting:
    url = f"{serving.running.inference.replace('http', 'ws')}/v1/models/{name}/v1/websocket"
    connection = connect(url, ping_interval=None, create_connection=Counting)
    assert isinstance(connection, Counting)
    return connection


def end_of(connection: ClientConnection) -> tuple[int, str]:
    with pytest.raises(ConnectionClosed) as caught:
        connection.recv(DEADLINE)
    assert caught.value.rcvd is not None
    return caught.value.rcvd.code, caught.value.rcvd.reason


def test_row_75_frames_are_answered_and_a_return_closes(serving: Serving) -> None:
    with open_socket(serving, "sockets") as connection:
        connection.send("hello")
        assert connection.recv(DEADLINE) == "HELLO"
        connection.send(b"\x01\x02")
        assert connection.recv(DEADLINE) == b"\x02\x01"
        connection.send("done")
        assert end_of(connection) == (1000, "")


def test_row_75_large_frames(serving: Serving) -> None:
    with open_socket(serving, "sockets") as connection:
        data = bytes(range(256)) * 4000
        connection.send(data)
        assert connection.recv(DEADLINE) == data[::-1]


def test_the_model_may_close_it(serving: Serving) -> None:
    with open_socket(serving, "sockets") as connection:
        connection.send("close")
        assert end_of(connection) == (4000, "as you wish")


def test_row_76_an_error_closes_it(serving: Serving) -> None:
    start = len(serving.log())
    with open_socket(serving, "sockets") as connection:
        connection.send("raise")
        assert end_of(connection) == (1011, "Internal Server Error (in model/chainlet).")
    assert "Traceback" in serving.wait_for_log("a secret detail", start)


def test_row_77_a_model_without_a_websocket(serving: Serving) -> None:
    with open_socket(serving, "plain") as connection:
        assert end_of(connection) == (1003, "WebSocket is not implemented on this deployment.")


def test_the_model_hears_how_the_client_closed(serving: Serving) -> None:
    start = len(serving.log())
    with open_socket(serving, "sockets") as connection:
        connection.close(4321, "bye")
    serving.wait_for_log("the client closed with 4321", start)


def test_a_client_that_vanishes_is_told_to_the_model(serving: Serving) -> None:
    start = len(serving.log())
    with open_socket(serving, "sockets") as connection:
        connection.send("hello")
        assert connection.recv(DEADLINE) == "HELLO"
        connection.socket.shutdown(socket.SHUT_RDWR)
    serving.wait_for_log("the client closed with 1006", start)


def test_row_78_pings_come_as_configured(serving: Serving) -> None:
    with open_socket(serving, "pinging") as pinged, open_socket(serving, "quiet") as quiet:
        end = time.monotonic() + DEADLINE
        while pinged.pings < 2 and time.monotonic() < end:
            time.sleep(0.05)
        assert pinged.pings >= 2
        assert quiet.pings == 0  # in a tenth of the default interval
        for connection in (pinged, quiet):
            connection.send("done")
            assert end_of(connection) == (1000, "")


def test_before_the_model_is_loaded_the_handshake_is_refused(serving: Serving) -> None:
    with pytest.raises(InvalidStatus) as caught:
        open_socket(serving, "late")
    response = caught.value.response
    assert response.status_code == 503
    assert response.headers["X-BASETEN-ERROR-CODE"] == "600"
    assert response.body == b'{"error": "Model with name late is not ready."}'


def test_a_model_with_only_a_websocket_has_probes_but_no_predict(serving: Serving) -> None:
    assert serving.get("sockets").status_code == 200
    is_error(serving.get("sockets", "/schema"), 404, 600)
    is_error(serving.predict("sockets", 1), 404, 700)
