"""The lifecycle of a worker process."""

import itertools
from typing import get_args

import pytest

from torchserve_py.core.scheduling.transitions import IllegalTransition
from torchserve_py.core.workers.lifecycle import WORKER_TRANSITIONS, WorkerEvent, WorkerState

S = WorkerState
EVENTS: tuple[WorkerEvent, ...] = get_args(WorkerEvent)


@pytest.mark.parametrize(
    ("events", "end"),
    [
        (["connected", "loaded"], S.READY),
        (["connected", "loaded", "stop", "exited"], S.STOPPED),
        (["connected", "loaded", "died"], S.DIED),
        (["died"], S.DIED),
        (["connected", "died"], S.DIED),
        (["stop", "connected", "exited"], S.STOPPED),
        (["connected", "stop", "loaded", "stop", "exited"], S.STOPPED),
    ],
)
def test_lives(events: list[WorkerEvent], end: WorkerState) -> None:
    state = S.STARTING
    for event in events:
        state = WORKER_TRANSITIONS[state, event]
    assert state is end


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in itertools.product(S, EVENTS) if pair not in WORKER_TRANSITIONS], ids=str
)
def test_what_the_table_lacks_is_a_bug(state: WorkerState, event: WorkerEvent) -> None:
    with pytest.raises(IllegalTransition, match=f"{event} cannot happen in state {state}"):
        WORKER_TRANSITIONS[state, event]


@pytest.mark.parametrize("state", [state for state in S if state not in (S.STOPPED, S.DIED)])
def test_every_life_can_end(state: WorkerState) -> None:
    assert (state, "exited" if state is S.STOPPING else "died") in WORKER_TRANSITIONS


@pytest.mark.parametrize("state", [S.STOPPED, S.DIED])
def test_nothing_follows_the_end(state: WorkerState) -> None:
    assert not [event for event in EVENTS if (state, event) in WORKER_TRANSITIONS]
