"""The life of a worker process as a table.

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        │                      └──────stop────────┼─────────────────┘
        └──────────────any of them: died──────────┴──▶ DIED

Whether a ready worker is busy is not a state of its own: it is, while jobs are in flight on it.
"""

from __future__ import annotations

from enum import Enum, auto


class WorkerState(Enum):
    """Where a worker process is in its life."""

    STARTING = auto()  # launched, not yet connected
    LOADING = auto()  # told to load the model
    READY = auto()  # takes jobs
    STOPPING = auto()  # told to stop
    STOPPED = auto()  # gone, as it was told
    DIED = auto()  # gone, on its own


class WorkerEvent(Enum):
    """What can happen to a worker process."""

    CONNECTED = auto()
    LOADED = auto()
    STOP = auto()
    EXITED = auto()
    DIED = auto()


_S, _E = WorkerState, WorkerEvent

TRANSITIONS: dict[tuple[WorkerState, WorkerEvent], WorkerState] = {
    (_S.STARTING, _E.CONNECTED): _S.LOADING,
    (_S.STARTING, _E.STOP): _S.STOPPING,
    (_S.STARTING, _E.DIED): _S.DIED,
    (_S.LOADING, _E.LOADED): _S.READY,
    (_S.LOADING, _E.STOP): _S.STOPPING,
    (_S.LOADING, _E.DIED): _S.DIED,
    (_S.READY, _E.STOP): _S.STOPPING,
    (_S.READY, _E.DIED): _S.DIED,
    (_S.STOPPING, _E.CONNECTED): _S.STOPPING,
    (_S.STOPPING, _E.LOADED): _S.STOPPING,
    (_S.STOPPING, _E.STOP): _S.STOPPING,
    (_S.STOPPING, _E.EXITED): _S.STOPPED,
}


def next_state(state: WorkerState, event: WorkerEvent) -> WorkerState:
    """Return the state after ``event``.

    Raises:
        RuntimeError: The table has no such transition, which is a bug in the caller.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise RuntimeError(f"a worker that is {state.name} cannot have {event.name}") from None
