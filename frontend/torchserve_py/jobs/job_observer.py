"""What a feature that follows every job is told, and what it may change; `plugin_api.Plugin.observer` makes one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torchserve_py.jobs.inference_request import InferenceRequest
from torchserve_py.scheduling.effects import Cause


class ObservedJob(NamedTuple):
    """A job that an observer follows.

    Attributes:
        headers: What its worker gets in place of the request's headers.
        trace_id: The trace that the access log names, if the observer keeps one.
        end: Called once the job has its outcome, with its id, the status of its answer or why it has none, and whether
            it failed.
    """

    headers: Sequence[tuple[Any, Any]]
    trace_id: str | None
    end: Callable[[str, Cause | int, bool], None]


class JobObserver(Protocol):
    """Follows jobs in the server, and calls of models in workers."""

    @property
    def in_workers(self) -> tuple[str, str]:
        """The name of a module for workers, and the argument of its ``observer``; see `ts.runtime.worker_observer`."""
        ...

    def begin(self, request: InferenceRequest, model: str, version: str) -> ObservedJob:
        """Note that a request becomes a job of this version of a model."""
        ...
