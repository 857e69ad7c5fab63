"""The timeline of the console: events are what differs between two looks at a version."""

import time
from dataclasses import replace
from typing import Any

from tests.endpoints.fake_serving import FakeModel, FakeServing, worker_status

from torchserve_py.core.serving.serving import ModelStatus, WorkerCountChange
from torchserve_py.tools.console.timeline import MOST_EVENTS, Timeline


def status(*workers: Any, least: int = 1, most: int = 1) -> ModelStatus:
    return ModelStatus(min_workers=least, max_workers=most, workers=list(workers), queue_remaining=100, queue_pending=0)


def texts(timeline: Timeline, number: int = 0) -> list[str]:
    return [each.text for each in timeline.since(number)]


def test_what_differs_is_an_event() -> None:
    model = FakeServing(registered=[FakeModel()]).models()[0]
    timeline, worker = Timeline(), worker_status()
    timeline.look(model, status(replace(worker, ready=False)), 1.0, is_default=False)
    timeline.look(model, status(worker), 2.0, is_default=False)
    assert texts(timeline) == ["registered", "worker 9000 is ready (process 19946)"]
    timeline.look(model, status(worker), 3.0, is_default=False)
    assert len(timeline.events) == 2
    died = replace(worker, restarts=1, last_end="was killed by SIGKILL", ready=False)
    timeline.look(model, status(died, most=3), 4.0, is_default=True)
    failed = replace(died, failure="no such file", restarts=1)
    timeline.look(model, status(failed, most=3), 5.0, is_default=True)
    timeline.look(model, status(most=3), 6.0, is_default=True)
    timeline.forget([model.id], 7.0)
    assert texts(timeline, 2) == [
        "scaled from 1 to 1 to 3 workers",
        "is the default version now",
        "worker 9000 ended: was killed by SIGKILL",
        "worker 9000 cannot load the model: no such file",
        "worker 9000 was stopped",
        "unregistered",
    ]
    assert [each.kind for each in timeline.since(4)] == ["bad", "bad", "plain", "plain"]
    timeline.forget([model.id], 8.0)
    assert texts(timeline, 8) == []


def test_why_the_number_of_workers_changed_is_an_event() -> None:
    model = FakeServing(registered=[FakeModel()]).models()[0]
    timeline = Timeline()
    loaded = replace(status(), latest_change=WorkerCountChange(1.0, 0, 1, "1 request waits"))
    evicted = replace(status(), latest_change=WorkerCountChange(2.0, 1, 0, "room for model b 1.0"))
    for look in (status(), loaded, loaded, evicted):
        timeline.look(model, look, 1.0, is_default=False)
    assert texts(timeline, 1) == [
        "from 0 to 1 workers: 1 request waits",
        "from 1 to 0 workers: room for model b 1.0",
    ]


def test_old_events_are_forgotten() -> None:
    model = FakeServing(registered=[FakeModel()]).models()[0]
    timeline = Timeline()
    for each in range(MOST_EVENTS + 10):
        timeline.look(model, status(most=each + 1), float(each), is_default=False)
    assert len(timeline.events) == MOST_EVENTS


def test_when_a_failing_worker_starts_again_is_told() -> None:
    timeline, model = Timeline(), FakeModel("m").served
    soon = time.time() + 12.5
    failing = worker_status(ready=False, pid=-1, restarts=1, failure="no such file", starts_at=soon)
    timeline.look(model, status(failing), 1.0, is_default=True)
    timeline.look(model, status(replace(failing, gave_up=True)), 2.0, is_default=True)
    assert "worker 9000 cannot load the model: no such file; starts again in 13 s" in texts(timeline)
    assert texts(timeline)[-1] == "worker 9000 was given up; it is started again once a minute"
