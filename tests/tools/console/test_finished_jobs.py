"""What the console remembers of jobs that have ended: the slowest of each model, and the steps of each sequence."""

import pytest
from tests.base.metrics.records import Ended

from torchserve_py.base.causes import Cause
from torchserve_py.tools.console import finished_jobs
from torchserve_py.tools.console.finished_jobs import MOST_SLOW, MOST_STEPS, WINDOW, FinishedJobs


def job(
    took: float,
    number: int = 0,
    *,
    at: float = 1e9,
    sequence: str = "",
    told: Cause | int = 200,
    waited: float = 0.0,
    state: int = 0,
) -> Ended:
    headers = ((b"X-Request-Id", f"request-{number}".encode()),)
    about = {"at": at, "headers": headers, "trace_id": "trace", "sequence_id": sequence, "worker_id": "9000"}
    return Ended(10.0, 10.0 + waited, 10.0 + took, told, told == 200, state_size=state, **about)  # type: ignore[arg-type]


def requests_of(jobs: list[dict[str, object]]) -> list[object]:
    return [each["request"] for each in jobs]


def test_the_slowest_come_first_with_their_ids() -> None:
    seen = FinishedJobs()
    seen.follow("net", "1.0", [job(number / 10, number) for number in (3, 1, 2)])
    assert requests_of(seen.slowest("net", "1.0")) == ["request-3", "request-2", "request-1"]
    seen.follow("net", "1.0", [job(1.5, 15, waited=0.5, told=Cause.worker_died)])
    first = seen.slowest("net", "1.0")[0]
    assert (first["waited"], first["ran"], first["told"], first["failed"]) == (500.0, 1000.0, "worker_died", True)
    assert (first["trace"], first["worker"]) == ("trace", "9000")
    assert seen.slowest("net", "2.0") == []


def test_only_so_many_are_kept_and_not_for_ever() -> None:
    seen = FinishedJobs()
    seen.follow("net", "1.0", [job(number, number) for number in range(100)])
    assert requests_of(seen.slowest("net", "1.0")) == [f"request-{99 - number}" for number in range(MOST_SLOW)]
    seen.follow("net", "1.0", [job(0.1, 100, at=1e9 + WINDOW)])
    assert requests_of(seen.slowest("net", "1.0"))[0] == "request-99"
    seen.follow("net", "1.0", [job(0.1, 101, at=1e9 + 2 * WINDOW)])
    assert requests_of(seen.slowest("net", "1.0")) == ["request-101", "request-100"]
    seen.follow("net", "1.0", [job(0.1, 102, at=1e9 + 9 * WINDOW)])
    assert requests_of(seen.slowest("net", "1.0")) == ["request-102"]


def test_a_sequence_has_its_last_steps_in_order() -> None:
    seen = FinishedJobs()
    steps = [job(1.0, number, sequence="ada" if number % 2 else "bob") for number in range(4)]
    seen.follow("net", "1.0", [*steps, job(1.0, 9)])
    assert requests_of(seen.steps("net", "1.0", "ada")) == ["request-1", "request-3"]
    assert seen.steps("net", "1.0", "eve") == []
    seen.follow("net", "1.0", [job(1.0, 4, sequence="bob", state=1500)])
    assert [each["state"] for each in seen.steps("net", "1.0", "bob")] == [None, None, 1500]
    seen.follow("net", "1.0", [job(1.0, number, sequence="ada") for number in range(200)])
    assert requests_of(seen.steps("net", "1.0", "ada")) == [
        f"request-{200 - MOST_STEPS + at}" for at in range(MOST_STEPS)
    ]


def test_the_sequences_with_the_oldest_steps_are_forgotten_first(monkeypatch) -> None:
    monkeypatch.setattr(finished_jobs, "MOST_SEQUENCES", 2)
    seen = FinishedJobs()
    seen.follow("net", "1.0", [job(1.0, sequence=name) for name in ("ada", "bob", "ada", "eve")])
    assert [bool(seen.steps("net", "1.0", name)) for name in ("ada", "bob", "eve")] == [True, False, True]


@pytest.mark.parametrize(
    ("told", "shown"), [(200, "200"), (400, "400"), (503, "handler_error"), (Cause.queue_full, "queue_full")]
)
def test_a_failure_is_shown_by_the_cause_that_its_client_gets_in_every_api(told: Cause | int, shown: str) -> None:
    seen = FinishedJobs()
    seen.follow("net", "1.0", [job(1.5, 15, told=told)])
    (first,) = seen.slowest("net", "1.0")
    assert first["told"] == shown
