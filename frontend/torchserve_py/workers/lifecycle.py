"""The lifecycle of a worker process, and its limits.

    STARTING ──connected──▶ LOADING ──loaded──▶ READY ──stop──▶ STOPPING ──exited──▶ STOPPED
        │                      │                  │                 ▲
        │                      └──────stop────────┼─────────────────┘
        └──────────────any of them: died──────────┴──▶ DIED

A ready worker is busy while it has jobs; that is no state of its own.
"""

from dataclasses import dataclass
from enum import StrEnum


class WorkerState(StrEnum):
    """Where a worker process is between its launch and its exit."""

    STARTING = "starting"  # launched, not yet connected
    LOADING = "loading"  # told to load the model
    READY = "ready"  # takes jobs
    STOPPING = "stopping"  # told to stop
    STOPPED = "stopped"  # gone, after a stop
    DIED = "died"  # gone, on its own


@dataclass(frozen=True)
class WorkerLimits:
    """How long a worker may take, in seconds."""

    connect: float  # from launch to its connection
    load: float  # to load the model
    response: float  # without a word while it has jobs
    stop: float  # from the stop message to its exit
    heartbeat: float  # without answering a ping, once loaded
