"""The lives of a worker process and of the place that its process fills, as tables.

A process, from its launch to its exit:

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        ├──────────────────────┴──────stop────────┼─────────────────┘
        └──────────any of these three: died───────┴──▶ DIED

A ready worker is busy while it has jobs; that is no state of its own.

A place, whose processes come and go:

    STARTING ──ready──▶ READY ──lost──▶ RESTARTING ──ready──▶ READY
        │                                 ▲   │
        └──────────────failed─────────────┘   └──give_up──▶ GAVE_UP ──ready──▶ READY

As long as no machine has room for its worker, a place that is not given up is WAITING. A place that was given up is
tried again all the same, but rarely; it leaves that state with a worker that is ready. Each place may be `end`ed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, TypeAlias

from torchserve_py.core.scheduling.transitions import Transitions


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


class PlaceState(StrEnum):
    """How the place of a worker is filled."""

    STARTING = "starting"  # nothing has failed; its worker is on its way
    WAITING = "waiting"  # no machine has room for its worker
    READY = "ready"  # its worker takes jobs
    RESTARTING = "restarting"  # its worker is gone, or did not get ready; the next one is to come
    GAVE_UP = "gave up"  # it has been failing for so long that a worker is started rarely
    ENDED = "ended"  # it is not kept filled any more


PlaceEvent: TypeAlias = Literal["no_room", "room", "ready", "lost", "failed", "give_up", "end"]
_P = PlaceState

PLACE_TRANSITIONS = Transitions[PlaceState, PlaceEvent](
    {
        (_P.STARTING, "no_room"): _P.WAITING,
        (_P.STARTING, "ready"): _P.READY,
        (_P.STARTING, "failed"): _P.RESTARTING,
        (_P.WAITING, "no_room"): _P.WAITING,
        (_P.WAITING, "room"): _P.STARTING,
        (_P.WAITING, "ready"): _P.READY,
        (_P.WAITING, "failed"): _P.RESTARTING,
        (_P.READY, "lost"): _P.RESTARTING,
        (_P.RESTARTING, "no_room"): _P.WAITING,
        (_P.RESTARTING, "ready"): _P.READY,
        (_P.RESTARTING, "failed"): _P.RESTARTING,
        (_P.RESTARTING, "give_up"): _P.GAVE_UP,
        (_P.GAVE_UP, "no_room"): _P.GAVE_UP,
        (_P.GAVE_UP, "room"): _P.GAVE_UP,
        (_P.GAVE_UP, "ready"): _P.READY,
        (_P.GAVE_UP, "failed"): _P.GAVE_UP,
        (_P.GAVE_UP, "give_up"): _P.GAVE_UP,
        **{(state, "end"): _P.ENDED for state in _P},
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
