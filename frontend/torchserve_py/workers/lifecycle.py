"""The lifecycle of a worker process as a table.

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        ├──────────────────────┴──────stop────────┼─────────────────┘
        └──────────any of these three: died───────┴──▶ DIED

A ready worker is busy while it has jobs; that is no state of its own.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from torchserve_py.scheduling.transitions import Transitions


class WorkerState(StrEnum):
    """Where a worker process is between its launch and its exit."""

    STARTING = "starting"  # launched, not yet connected
    LOADING = "loading"  # told to load the model
    READY = "ready"  # takes jobs
    STOPPING = "stopping"  # told to stop
    STOPPED = "stopped"  # gone, after a stop
    DIED = "died"  # gone, on its own


WorkerEvent: TypeAlias = Literal["connected", "loaded", "stop", "exited", "died"]
_S = WorkerState

WORKER_TRANSITIONS = Transitions[WorkerState, WorkerEvent](
    {
        (_S.STARTING, "connected"): _S.LOADING,
        (_S.STARTING, "stop"): _S.STOPPING,
        (_S.STARTING, "died"): _S.DIED,
        (_S.LOADING, "loaded"): _S.READY,
        (_S.LOADING, "stop"): _S.STOPPING,
        (_S.LOADING, "died"): _S.DIED,
        (_S.READY, "stop"): _S.STOPPING,
        (_S.READY, "died"): _S.DIED,
        (_S.STOPPING, "connected"): _S.STOPPING,
        (_S.STOPPING, "loaded"): _S.STOPPING,
        (_S.STOPPING, "stop"): _S.STOPPING,
        (_S.STOPPING, "exited"): _S.STOPPED,
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
