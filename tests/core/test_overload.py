"""More work than the workers can do: what is refused at once, what expires, what goes first, and that refused work is
never run."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import RunningServer, eventually, model_folder

#: Answers with the names of all requests that it has seen; ``wait`` is a gate.
SEEN = (
    WAITING
    + """
seen = []


def handle(data, context):
    if data is None:
        return None
    for row in data:
        seen.append(row["body"]["name"])
        if "wait" in row["body"]:
            wait_for(row["body"]["wait"])
    return [seen] * len(data)
"""
)

NO_WORKER = (
    " has no worker to serve inference request. Please use scale workers API to add workers. If this is a sequence"
    " inference, please check if it is closed, or expired; or exceeds maxSequenceJobQueueSize"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "short": model_folder(folder, "short", SEEN, "jobQueueSize: 2\n"),
        "impatient": model_folder(folder, "impatient", SEEN, "clientTimeoutInMills: 100\n"),
        "hurried": model_folder(folder, "hurried", SEEN),
        "ticket": model_folder(folder, "ticket", SEEN, "useJobTicket: true\n"),
        "scaled": model_folder(folder, "scaled", SEEN),
        "urgent": model_folder(folder, "urgent", SEEN),
    }
    with RunningServer(models, {"drain_timeout": 1}) as running:
        running.wait_ready()
        yield running


def ask(server: RunningServer, model: str, name: str, priority: int = 0, **order: str) -> requests.Response:
    body = {"name": name, **order}
    headers = {"ts_request_priority": str(priority)} if priority else {}
    return requests.post(f"{server.inference}/predictions/{model}", json=body, headers=headers, timeout=180)


def is_pending(server: RunningServer, model: str, count: int) -> bool:
    return bool(server.describe(model)[0]["jobQueueStatus"]["pendingRequests"] == count)


@contextmanager
def busy(server: RunningServer, model: str, directory: Path) -> Iterator[tuple[ThreadPoolExecutor, Gate]]:
    """The worker of ``model`` waits at a gate, which is opened at the end; its request is answered then."""
    gate = Gate(directory)
    with ThreadPoolExecutor(8) as pool:
        running = pool.submit(ask, server, model, "running", wait=str(gate.path))
        try:
            gate.wait_until_reached()
            yield pool, gate
        finally:
            gate.open()
        assert running.result().status_code == 200


def refusal(response: requests.Response, model: str, cause: str) -> None:
    assert response.status_code == 503
    assert response.json() == {
        "code": 503,
        "type": "ServiceUnavailableException",
        "message": f'Model "{model}"{NO_WORKER}',
    }
    assert response.headers["ts-error-cause"] == cause
    assert int(response.headers["retry-after"]) >= 1


def test_a_full_queue_refuses_at_once(server: RunningServer, tmp_path: Path) -> None:
    with busy(server, "short", tmp_path) as (pool, gate):
        waiting: list[Future[requests.Response]] = []
        for number in range(2):
            waiting.append(pool.submit(ask, server, "short", f"waiting {number}"))
            eventually(partial(is_pending, server, "short", number + 1), "the request waits")
        assert server.describe("short")[0]["jobQueueStatus"] == {"remainingCapacity": 0, "pendingRequests": 2}
        refusal(ask(server, "short", "refused"), "short", "queue_full")
        assert not waiting[0].done()
        gate.open()
        assert [each.result().status_code for each in waiting] == [200, 200]
    assert ask(server, "short", "last").json() == ["running", "waiting 0", "waiting 1", "last"]


def test_a_request_that_waits_too_long_is_answered_and_never_run(server: RunningServer, tmp_path: Path) -> None:
    with busy(server, "impatient", tmp_path) as (_, gate):
        response = ask(server, "impatient", "expired")
        assert not gate.path.exists()
        assert (response.status_code, response.json()["type"]) == (408, "RequestTimeoutException")
        assert response.headers["ts-error-cause"] == "client_timeout"
    assert ask(server, "impatient", "last").json() == ["running", "last"]


def test_urgent_requests_overtake_others_that_wait(server: RunningServer, tmp_path: Path) -> None:
    with busy(server, "urgent", tmp_path) as (pool, gate):
        waiting: list[Future[requests.Response]] = []
        for priority in (0, 2, 1, 0, 2):
            waiting.append(pool.submit(ask, server, "urgent", f"{len(waiting)}: {priority}", priority))
            eventually(partial(is_pending, server, "urgent", len(waiting)), "the request waits")
        gate.open()
        assert [each.result().status_code for each in waiting] == [200] * 5
    assert ask(server, "urgent", "last").json() == ["running", "2: 1", "1: 2", "4: 2", "0: 0", "3: 0", "last"]


def test_what_cannot_be_answered_in_time_is_refused_at_once_and_never_run(
    server: RunningServer, tmp_path: Path
) -> None:
    with busy(server, "hurried", tmp_path):
        time.sleep(1.0)  # so that a step has taken at least so long
    body, limit = {"name": "refused"}, {"x-request-timeout-ms": "900"}
    response = requests.post(f"{server.inference}/predictions/hurried", json=body, headers=limit, timeout=180)
    assert response.status_code == 503
    assert response.headers["ts-error-cause"] == "overloaded"
    assert int(response.headers["retry-after"]) >= 1
    assert ask(server, "hurried", "last").json() == ["running", "last"]


def test_with_job_tickets_nothing_waits(server: RunningServer, tmp_path: Path) -> None:
    with busy(server, "ticket", tmp_path):
        response = ask(server, "ticket", "refused")
        assert response.status_code == 503
        assert response.headers["ts-error-cause"] == "queue_full"
        assert "retry-after" in response.headers
    assert ask(server, "ticket", "last").json() == ["running", "last"]


def test_a_model_without_workers_refuses_at_once(server: RunningServer) -> None:
    def scale(count: int) -> None:
        parameters: dict[str, str | int] = {"min_worker": count, "synchronous": "true"}
        scaled = requests.put(f"{server.management}/models/scaled", params=parameters, timeout=180)
        assert scaled.json() == {"status": f"Workers scaled to {count} for model: scaled"}

    scale(0)
    refusal(ask(server, "scaled", "refused"), "scaled", "no_worker")
    with_version = requests.post(f"{server.inference}/predictions/scaled/1.0", json={"name": "refused"}, timeout=180)
    assert with_version.json()["message"] == f'Model "scaled" Version 1.0"{NO_WORKER}'
    scale(1)
    assert ask(server, "scaled", "served").json() == ["served"]
