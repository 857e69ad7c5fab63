"""Live sessions of stored sequences: resumed after a cut, a worker's death, a restart, and at another server."""

import contextlib
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.gate import Gate
from tests.e2e.running_server import HANDLERS, RunningServer, eventually, model_folder
from tests.e2e.sequence_store import CONFIG, HANDLER, shared_store
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

LIMIT = 60


@pytest.fixture(params=["file", "redis"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A model that adds up; servers that serve it share its store."""
    with shared_store(request.param, tmp_path) as store:
        yield store.model()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "marks").mkdir()
    return {"MARKS": str(tmp_path / "marks"), "GATE": str(tmp_path / "gate")}


class Session:
    """A client that does by hand what `torchserve_py.client` does by itself."""

    def __init__(
        self, server: RunningServer, name: str = "tally", *, console: bool = False, sequence: str = ""
    ) -> None:
        base = (
            f"{server.management}/console/sequences/{name}/1.0" if console else f"{server.inference}/sequences/{name}"
        )
        self._url = f"{base.replace('http', 'ws', 1)}?content_type=text/plain"
        if sequence:
            self._url += f"&sequence={sequence}"
        self.socket: ClientConnection = connect(self._url).__enter__()
        self.greeting = self.receive()

    def send(self, body: str, **more: Any) -> None:
        self.socket.send(json.dumps({"body": body, **more}))

    def receive(self) -> Any:
        return json.loads(self.socket.recv(timeout=LIMIT))

    def step(self, body: str, **more: Any) -> str:
        self.send(body, **more)
        answer = self.receive()
        assert "error" not in answer, answer
        return str(answer["body"])

    def resume(self, token: str, after: int, sent: int) -> list[Any]:
        """Resume, and return everything up to the greeting."""
        unanswered = list(range(after + 1, sent + 1))
        self.socket.send(json.dumps({"resume": token, "after": after, "unanswered": unanswered}))
        got = [self.receive()]
        while "sequence" not in got[-1] and "error" not in got[-1]:
            got.append(self.receive())
        return got

    def cut(self) -> None:
        """Drop the connection without a word."""
        self.socket.socket.close()

    def closed(self) -> tuple[int, str]:
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                self.socket.recv(timeout=LIMIT)
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code, closed.value.rcvd.reason


@contextlib.contextmanager
def serving(model: Path, environment: dict[str, str]) -> Iterator[RunningServer]:
    with RunningServer({"tally": model}, environment=environment) as server:
        server.wait_ready()
        yield server


def resumed(server: RunningServer, token: str, after: int, sent: int) -> tuple[Session, list[Any]]:
    """Resume, again and again while the server asks to try later."""
    found: list[tuple[Session, list[Any]]] = []

    def attempt() -> bool:
        session = Session(server)
        got = session.resume(token, after, sent)
        if "sequence" in got[-1]:
            found.append((session, got))
        return bool(found)

    eventually(attempt, "the session is resumed", LIMIT)
    return found[0]


def test_answers_that_were_missed_come_when_a_session_is_resumed(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    with serving(model, environment) as server:
        gate = Gate(tmp_path)
        first = Session(server)
        token = first.greeting["resume"]
        assert first.step("5") == "5"
        first.send("wait 12")
        gate.wait_until_reached()
        first.cut()
        gate.open()
        second, got = resumed(server, token, 1, 2)
        assert [(each["step"], each["body"]) for each in got[:-1]] == [(2, "17")]
        told = got[-1]
        assert (told["resume"], told["sequence"], told["last"]) == (token, first.greeting["sequence"], 2)
        assert second.step("3", step=3) == "20"
        assert second.step("3", step=3) == "20", "a step that is sent twice counts once"
        assert second.step("1", step=4) == "21"
        second.send("no number", step=5)
        assert second.receive()["error"]["cause"] == "handler_error"
        assert second.step("1", step=5) == "22", "the number of a step that has failed is used again"
        second.send("1", step=7)
        assert second.receive()["error"]["cause"] == "step_gap"
        second.send("2", step=5)
        assert second.receive()["error"]["cause"] == "step_differs"
        assert second.step("1") == "23"


def test_another_connection_that_resumes_takes_the_session_over(model: Path, environment: dict[str, str]) -> None:
    with serving(model, environment) as server:
        first = Session(server)
        assert first.step("5") == "5"
        second, _ = resumed(server, first.greeting["resume"], 1, 1)
        assert first.closed() == (4409, "Another connection has resumed the session.")
        assert second.step("2") == "7"


def test_the_console_takes_a_session_over_and_leaves_it_as_every_connection(
    model: Path, environment: dict[str, str]
) -> None:
    with serving(model, environment) as server:
        first = Session(server)
        token = first.greeting["resume"]
        assert first.step("5") == "5"
        watching = Session(server, console=True)
        assert "sequence" in watching.resume(token, 1, 1)[-1]
        assert first.closed() == (4409, "Another connection has resumed the session.")
        back = Session(server)
        assert "sequence" in back.resume(token, 1, 1)[-1]
        assert watching.closed() == (4409, "Another connection has resumed the session.")
        assert back.step("2") == "7"


def test_a_session_outlives_its_worker_and_its_server(model: Path, environment: dict[str, str]) -> None:
    with serving(model, environment) as server:
        first = Session(server)
        token = first.greeting["resume"]
        assert first.step("5") == "5"
        assert first.step("kill after 12") == "17"
    with serving(model, environment) as server:
        second, got = resumed(server, token, 1, 2)
        assert [(each["step"], each["body"]) for each in got[:-1]] == [(2, "17")]
        assert got[-1]["last"] == 2
        assert second.step("3") == "20"
        second.send("0", end=True)
        assert second.closed() == (1000, "The sequence has ended.")


def test_a_session_goes_on_at_another_server_as_soon_as_its_client_has_left(
    model: Path, environment: dict[str, str]
) -> None:
    with serving(model, environment) as here, serving(model, environment) as there:
        first = Session(here)
        token = first.greeting["resume"]
        assert first.step("5") == "5"
        first.cut()
        second, _ = resumed(there, token, 1, 1)  # long before the lease of ten minutes is over
        assert second.step("12") == "17"
        assert second.socket.close() is None
        third, got = resumed(here, token, 1, 2)
        assert [(each["step"], each["body"]) for each in got[:-1]] == [(2, "17")]
        assert third.step("1") == "18"


def test_a_session_that_the_store_does_not_know_is_lost(model: Path, environment: dict[str, str]) -> None:
    with serving(model, environment) as server:
        session = Session(server)
        (lost,) = session.resume("made-up", 3, 4)
        assert (lost["step"], lost["error"]["status"], lost["error"]["cause"]) == (0, 410, "sequence_lost")
        assert session.closed() == (4410, "sequence_lost")
        begun = Session(server)
        told = begun.resume(begun.greeting["resume"], 0, 1)  # its first step had not arrived
        assert [each["last"] for each in told] == [0]
        assert begun.step("5", step=1) == "5"
        begun.socket.send(json.dumps({"resume": "x"}))
        assert begun.closed() == (1008, "A session is resumed before its first step.")


def in_memory(tmp_path: Path) -> Path:
    """Return a model without a store."""
    config = CONFIG.format(
        response_timeout=20, idle=60_000, store="memory", place="", lease=600, checkpoint_every=100
    ).replace("{store: memory, , lease: 600, checkpointEvery: 100}", "{store: memory}")
    return model_folder(tmp_path, "tally", HANDLER, textwrap.dedent(config))


def test_a_session_of_a_named_sequence_in_memory_goes_on_over_another_connection(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with serving(in_memory(tmp_path), environment) as server:
        first = Session(server, sequence="ada")
        token = first.greeting["resume"]
        assert [first.step("5"), first.step("2")] == ["5", "7"]
        first.cut()
        second = Session(server, sequence="ada")
        got = second.resume(token, 1, 2)
        assert [(each["step"], each["body"]) for each in got[:-1]] == [(2, "7")]
        assert second.step("1", step=3) == "8", "it was not applied"
        assert server.predict("tally", "2", sequence="ada").text == "10"


def test_without_a_store_a_session_is_lost_with_its_connection_but_may_be_taken_over(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    with serving(in_memory(tmp_path), environment) as server:
        first = Session(server)
        token = first.greeting["resume"]
        assert first.step("5") == "5"
        second, _ = resumed(server, token, 1, 1)
        assert first.closed() == (4409, "Another connection has resumed the session.")
        assert second.step("2", step=2) == "7"
        third, got = resumed(server, token, 1, 2)
        assert [(each["step"], each["body"]) for each in got[:-1]] == [(2, "7")]
        assert third.step("2", step=2) == "7", "a step that is sent twice counts once"
        third.send("no number", step=4)
        assert third.receive()["error"]["cause"] == "step_gap"
        third.cut()
        eventually(lambda: server.metric("ts_open_sequences", model_name="tally") == 0, "the server has noticed")
        for lost, after in ((token, 2), ("any", 1)):
            fourth = Session(server)
            assert [each["error"]["cause"] for each in fourth.resume(lost, after, after)] == ["sequence_lost"]
            assert fourth.closed() == (4410, "sequence_lost")


def test_steps_behind_an_end_by_the_handler_begin_nothing_anew() -> None:
    with RunningServer({"durable": HANDLERS / "durable"}) as server:
        server.wait_ready()
        first = Session(server, "durable")
        assert first.greeting["window"] == 8
        for number in ("5", "0", *"345678"):  # the handler ends the sequence at 0
            first.send(number)
        assert [first.receive()["body"] for _ in range(2)] == ["5", "5"]
        assert first.closed() == (1000, "The sequence has ended.")
        second = Session(server, "durable")
        *answers, told = second.resume(first.greeting["resume"], 0, 8)
        assert [(each["step"], each["body"]) for each in answers] == [(1, "5"), (2, "5")]
        assert told["last"] == 2
        assert second.closed() == (1000, "The sequence has ended.")
