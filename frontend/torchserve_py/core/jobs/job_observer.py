"""What a plugin that follows jobs is told, and what it may change.

`plugin_api.Plugin.observer` makes one that follows every job; the account of a key follows those of its client.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from torchserve_py.base.metrics.model_metrics import EndedJob
from torchserve_py.base.settings.schemas.plugin_keys import PluginKeys
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.jobs.parts import Exceeded, Part

#: Gets a job that has its outcome, and the last part of its answer, or None if it has no answer.
OnEnd: TypeAlias = Callable[[EndedJob, Part | None], None]
#: Gets a part of a job's answer that others will follow.
OnPart: TypeAlias = Callable[[Part], None]


class ObservedJob(NamedTuple):
    """A job that an observer follows.

    Attributes:
        headers: What its worker gets in place of the request's headers.
        trace_id: The trace that the access log names, if the observer keeps one.
        end: Called once the job has its outcome.
        part: Called for each part but the last, if it is not None.
    """

    headers: Sequence[tuple[Any, Any]]
    trace_id: str | None
    end: OnEnd
    part: OnPart | None = None


class JobObserver(Protocol):
    """Follows jobs in the server, and calls of models in workers."""

    @property
    def in_workers(self) -> tuple[str, str] | None:
        """The name of a module for workers, and the argument of its ``observer``; see `ts.runtime.worker_observer`."""
        ...

    def of_model(self, name: str, version: str, keys: PluginKeys) -> "JobObserver | None":
        """Return what follows the jobs of a version of a model with these keys, None if nothing does.

        Raises ModelError: the keys ask for what is not possible here.
        """
        ...

    def begin(self, call: Call, model: str, version: str) -> ObservedJob | None:
        """Note that a call is submitted to this version of a model; return None not to follow it."""
        ...


class Account(Protocol):
    """What one client may ask of a server, and what it has used; its requests of all models count together."""

    @property
    def client(self) -> str:
        """What tells the client from others."""

    @property
    def name(self) -> str:
        """The name of the key: the one that takes its place has the same."""

    @property
    def weight(self) -> float:
        """How many turns it has while one with 1 has one, where requests of several clients wait."""

    def begin(self, call: Call, model: str, is_open: Callable[[str], bool]) -> Exceeded | ObservedJob:
        """Follow a call of a model, or return why it may not run; ``is_open`` tells whether a sequence is open."""
