"""The lifecycle of a worker process as a table.

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        │                      └──────stop────────┼─────────────────┘
        └──────────────any of them: died──────────┴──▶ DIED

A ready worker is busy while it has jobs; that is no state of its own.
"""

from dataclasses import dataclass
from enum import StrEnum

from torchserve_py.scheduling.transitions import Transitions


class WorkerState(StrEnum):
    """Where a worker process is between its launch and its exit."""

    STARTING = "starting"  # launched, not yet connected
    LOADING = "loading"  # told to load the model
    READY = "ready"  # takes jobs
    STOPPING = "stopping"  # told to stop
    STOPPED = "stopped"  # gone, after a stop
    DIED = "died"  # gone, on its own


class WorkerEvent(StrEnum):
    """What can happen to a worker process."""

    CONNECTED = "connected"
    LOADED = "loaded"
    STOP = "stop"
    EXITED = "exited"
    DIED = "died"


_S, _E = WorkerState, WorkerEvent

WORKER_TRANSITIONS = Transitions[WorkerState, WorkerEvent](
    {
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
)


@dataclass(frozen=True)
class WorkerLimits:
    """How long a worker may take, in seconds."""

    connect: float  # from launch to its connection
    load: float  # to load the model
    response: float  # without a word while it has jobs
    stop: float  # from the stop message to its exit
    heartbeat: float  # without answering a ping, once loaded
