"""SageMaker's stateful sessions: what Amazon's container standards do with a client, this server does, and more."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient
from model_hosting_container_standards import sagemaker
from tests.e2e.running_server import RunningServer

SESSION = "X-Amzn-SageMaker-Session-Id"
NEW = "X-Amzn-SageMaker-New-Session-Id"
CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"
#: As the service model of SageMaker's runtime has it.
NEW_ID = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*;\sExpires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")

HANDLER = """
from ts.sequence import SequenceCache


class Tally:
    def initialize(self, context):
        self.totals = SequenceCache(context)

    def handle(self, data, context):
        return [self.step(index, row["body"], context) for index, row in enumerate(data)]

    def step(self, index, body, context):
        name = context.get_sequence_id(index)
        self.totals[name] = self.totals.get(name, 0) + body.get("add", 0)
        if body.get("last"):
            context.set_response_header(index, context.header_key_sequence_end, name)
        return {"total": self.totals[name]}
"""
CONFIG = "minWorkers: 1\nsequenceBatching: true\nsequenceMaxIdleMSec: 60000\nmaxNumSequence: 16\n"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    models = tmp_path_factory.mktemp("models")
    for name, more in (("tally", ""), ("stored", f"handler:\n  cache: {{store: file, path: {models}/stored.db}}\n")):
        (models / name).mkdir()
        (models / name / "handler.py").write_text(HANDLER)
        (models / name / "model-config.yaml").write_text(CONFIG + more)
    with RunningServer({name: models / name for name in ("tally", "stored")}) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.inference, params={"model_name": "tally"}, timeout=180) as client:
            yield client


@pytest.fixture(scope="module")
def theirs() -> Iterator[httpx.Client]:
    """A container as Amazon's package makes it of a FastAPI application."""
    app, totals = FastAPI(), dict[str | None, int]()

    @app.post("/invocations")
    @sagemaker.stateful_session_manager()
    async def invocations(request: Request) -> dict[str, int]:
        name, body = request.headers.get(SESSION), await request.json()
        totals[name] = totals.get(name, 0) + body["add"]
        return {"total": totals[name]}

    with TestClient(app) as client:
        yield client


@pytest.fixture(params=["ours", "theirs"])
def container(request: pytest.FixtureRequest) -> httpx.Client:
    client: httpx.Client = request.getfixturevalue(request.param)
    return client


def invoke(
    client: httpx.Client, body: object, session: str | None = None, path: str = "/invocations"
) -> httpx.Response:
    return client.post(path, json=body, headers={} if session is None else {SESSION: session})


def opened(answer: httpx.Response) -> str:
    """Return the id of the session that an answer tells of."""
    assert answer.status_code == 200, answer.text
    told = NEW_ID.fullmatch(answer.headers[NEW])
    assert told is not None, answer.headers[NEW]
    expires = datetime.strptime(told[2], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert timedelta(0) < expires - datetime.now(UTC) <= timedelta(minutes=20)
    return answer.headers[NEW].partition(";")[0]


@pytest.mark.parametrize("header", [None, "NEW_SESSION"])
def test_a_session_is_opened_used_and_closed(container: httpx.Client, header: str | None) -> None:
    session = opened(invoke(container, {"requestType": "NEW_SESSION"}, header))
    assert [invoke(container, {"add": 2}, session).json()["total"] for _ in range(3)] == [2, 4, 6]
    closed = invoke(container, {"requestType": "CLOSE"}, session)
    assert (closed.status_code, closed.headers[CLOSED], closed.text) == (200, session, f"Session {session} closed")
    assert invoke(container, {"add": 2}, session).status_code == 400
    assert invoke(container, {"requestType": "CLOSE"}, session).status_code == 400


def test_sessions_are_apart(container: httpx.Client) -> None:
    one, other = (opened(invoke(container, {"requestType": "NEW_SESSION"}, "NEW_SESSION")) for _ in range(2))
    assert invoke(container, {"add": 2}, one).json() == {"total": 2}
    assert invoke(container, {"add": 3}, other).json() == {"total": 3}
    for session in (one, other):
        assert invoke(container, {"requestType": "CLOSE"}, session).headers[CLOSED] == session


def test_a_session_that_was_never_opened_is_refused(container: httpx.Client) -> None:
    answer = invoke(container, {"add": 1}, "made-up")
    assert answer.status_code == 400
    assert "session not found: " in answer.text
    assert "made-up" in answer.text


@pytest.mark.parametrize("path", ["/invocations", "/models/tally/invoke", "/models/stored/invoke"])
def test_the_first_request_opens_a_session_and_the_handler_ends_it(ours: httpx.Client, path: str) -> None:
    first, other = (invoke(ours, {"add": 5}, "NEW_SESSION", path) for _ in range(2))
    assert (first.json(), other.json()) == ({"total": 5}, {"total": 5}), "clients do not share NEW_SESSION"
    session = opened(first)
    second = invoke(ours, {"add": 1}, session, path)
    assert (second.json(), NEW in second.headers, CLOSED in second.headers) == ({"total": 6}, False, False)
    last = invoke(ours, {"add": 1, "last": True}, session, path)
    assert (last.json(), last.headers[CLOSED]) == ({"total": 7}, session)


def test_a_stored_session_is_closed_for_good(ours: httpx.Client) -> None:
    path = "/models/stored/invoke"
    session = opened(invoke(ours, {"requestType": "NEW_SESSION"}, "NEW_SESSION", path))
    assert invoke(ours, {"add": 5}, session, path).json() == {"total": 5}
    closed = invoke(ours, {"requestType": "CLOSE"}, session, path)
    assert (closed.status_code, closed.headers[CLOSED], closed.text) == (200, session, f"Session {session} closed")
    assert invoke(ours, {"add": 1}, session, path).json() == {"total": 1}, "nothing of it is left"


def test_the_client_ends_a_session_with_its_last_request(ours: httpx.Client) -> None:
    session = opened(invoke(ours, {"add": 5}, "NEW_SESSION"))
    headers = {SESSION: session, "ts_request_sequence_end": "true"}
    last = ours.post("/invocations", json={"add": 1}, headers=headers)
    assert (last.json(), last.headers[CLOSED]) == ({"total": 6}, session)
    assert invoke(ours, {"add": 1}, session).status_code == 400


def test_other_bodies_with_a_request_type_go_to_the_handler(ours: httpx.Client) -> None:
    answer = invoke(ours, {"requestType": "NEW_SESSION", "add": 3})
    assert (answer.json(), NEW in answer.headers) == ({"total": 3}, False)


@pytest.mark.parametrize("session", [None, "", "NEW_SESSION", "x" * 2000])
def test_what_cannot_be_closed(ours: httpx.Client, session: str | None) -> None:
    assert invoke(ours, {"requestType": "CLOSE"}, session).status_code == 400


def test_where_sagemakers_header_is_that_of_sequences_a_new_session_is_nobody_elses(tmp_path: Path) -> None:
    model = tmp_path / "tally"
    model.mkdir()
    (model / "handler.py").write_text(HANDLER)
    (model / "model-config.yaml").write_text(CONFIG)
    with RunningServer({"tally": model}, {"ts_header_key_sequence_id": SESSION}) as server:
        server.wait_ready()
        with httpx.Client(base_url=server.inference, timeout=180) as client:
            for path in ("/predictions/tally", "/invocations"):
                ids = set()
                for _ in range(2):
                    answer = invoke(client, {"add": 5}, "NEW_SESSION", path)
                    assert answer.json() == {"total": 5}
                    ids.add(answer.headers[SESSION])
                    assert invoke(client, {"add": 1}, answer.headers[SESSION], path).json() == {"total": 6}
                assert len(ids) == 2
