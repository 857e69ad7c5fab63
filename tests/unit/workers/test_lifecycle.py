"""The lifecycle of a worker process."""

import itertools

import pytest

from torchserve_py.scheduling.transitions import IllegalTransition
from torchserve_py.workers.lifecycle import WORKER_TRANSITIONS, WorkerEvent, WorkerState

S, E = WorkerState, WorkerEvent


@pytest.mark.parametrize(
    ("events", "end"),
    [
        ([E.CONNECTED, E.LOADED], S.READY),
        ([E.CONNECTED, E.LOADED, E.STOP, E.EXITED], S.STOPPED),
        ([E.CONNECTED, E.LOADED, E.DIED], S.DIED),
        ([E.DIED], S.DIED),
        ([E.CONNECTED, E.DIED], S.DIED),
        ([E.STOP, E.CONNECTED, E.EXITED], S.STOPPED),
        ([E.CONNECTED, E.STOP, E.LOADED, E.STOP, E.EXITED], S.STOPPED),
    ],
)
def test_lives(events: list[WorkerEvent], end: WorkerState) -> None:
    state = S.STARTING
    for event in events:
        state = WORKER_TRANSITIONS[state, event]
    assert state is end


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in itertools.product(S, E) if pair not in WORKER_TRANSITIONS], ids=str
)
def test_what_the_table_lacks_is_a_bug(state: WorkerState, event: WorkerEvent) -> None:
    with pytest.raises(IllegalTransition, match=f"{event} cannot happen in state {state}"):
        WORKER_TRANSITIONS[state, event]


@pytest.mark.parametrize("state", [state for state in S if state not in (S.STOPPED, S.DIED)])
def test_every_life_can_end(state: WorkerState) -> None:
    assert (state, E.EXITED if state is S.STOPPING else E.DIED) in WORKER_TRANSITIONS


@pytest.mark.parametrize("state", [S.STOPPED, S.DIED])
def test_nothing_follows_the_end(state: WorkerState) -> None:
    assert not [event for event in E if (state, event) in WORKER_TRANSITIONS]
