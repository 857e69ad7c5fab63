"""SageMaker's sessions of a function whose sequences are stored, in a real server."""

from pathlib import Path

import requests
from tests.e2e.running_server import DEADLINE, RunningServer

COUNTER = """
from ts import serve


@serve(store="file")
def counter(number: int, state: dict) -> int:
    state["sum"] = state.get("sum", 0) + number
    return state["sum"]
"""


def test_a_session_closes_although_the_function_takes_no_such_request(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    with RunningServer({"counter": tmp_path / "counter.py"}) as server:

        def invoke(body: object, session: str = "") -> requests.Response:
            headers = {"X-Amzn-SageMaker-Session-Id": session} if session else {}
            return requests.post(f"{server.inference}/invocations", json=body, headers=headers, timeout=DEADLINE)

        opened = invoke({"requestType": "NEW_SESSION"})
        session = opened.headers["X-Amzn-SageMaker-New-Session-Id"].partition(";")[0]
        assert [invoke(number, session).json() for number in (1, 2)] == [1, 3]
        closed = invoke({"requestType": "CLOSE"}, session)
        assert (closed.status_code, closed.text) == (200, f"Session {session} closed")
        assert closed.headers["X-Amzn-SageMaker-Closed-Session-Id"] == session
        assert invoke(4, session).json() == 4  # as an id that nobody has used
