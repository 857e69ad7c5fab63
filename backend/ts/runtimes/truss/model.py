"""A loaded Truss model and the resources that its calls share: slots, threads, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ts.runtimes.truss.config import Options, TrussConfig
from ts.runtimes.truss.description import Description
from ts.runtimes.truss.hot_reload import HotReload
from ts.runtimes.truss.slots import Slots
from ts.runtimes.truss.threads import MOST_THREADS, Threads
from ts.runtimes.truss.tracing import Tracing

#: More than one, so that a health check that hangs does not block the next.
_PROBES_AT_ONCE: Final = 4


class ServedModel:
    """A loaded model; a worker creates one.

    Attributes:
        slots: Limits how many calls of predict run at once.
        alias_slots: Limits how many alias methods run at once; None for no limit.
        predict_threads: Run a predict that is a plain function.
        threads: Run all other plain functions of calls.
        probe_threads: Run the health check.
    """

    def __init__(
        self,
        name: str,
        description: Description,
        class_file: Path,
        config: TrussConfig,
        options: Options,
        *,
        max_response_size: int,
        tracing: Tracing | None = None,
        hot_reload: HotReload | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.class_file = class_file
        self.options = options
        self.max_response_size = max_response_size
        self.tracing = tracing
        self.hot_reload = hot_reload
        self.streaming_read_timeout = config.streaming_read_timeout
        self.slots = Slots(config.predict_concurrency)
        self.alias_slots = Slots(options.alias_concurrency) if options.alias_concurrency else None
        self.predict_threads = Threads("predict", config.predict_concurrency)
        self.threads = Threads("step", MOST_THREADS)
        self.probe_threads = Threads("probe", _PROBES_AT_ONCE)
        self.metrics_thread = Threads("metrics", 1)

    def close(self) -> None:
        """Start nothing more in threads, and have the last spans sent."""
        for threads in (self.predict_threads, self.threads, self.probe_threads, self.metrics_thread):
            threads.close()
        if self.tracing is not None:
            self.tracing.close()
