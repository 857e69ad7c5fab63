"""A model that is being served, and what its calls share: slots, threads, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ts.runtimes.truss.config import Options, TrussConfig
from ts.runtimes.truss.description import Description
from ts.runtimes.truss.hot_reload import HotReload
from ts.runtimes.truss.slots import Slots
from ts.runtimes.truss.threads import MOST_THREADS, Threads
from ts.runtimes.truss.tracing import Tracing

#: A health check that does not come back is not to hold up the next.
_PROBES_AT_ONCE: Final = 4


class ServedModel:
    """A loaded model; to be made once, in the worker.

    Args:
        name: What it is served as.
        description: Its methods.
        class_file: The file that its class is in.
        config: Its configuration.
        options: What its owner chose beyond Truss.
        max_response_size: The largest body in bytes that one part of an answer may have.
        tracing: What traces its requests, if anything does.
        hot_reload: What takes its code anew, if its owner allows that.

    Attributes:
        slots: What predict is limited by.
        alias_slots: What the alias methods are limited by, if they are.
        predict_threads: Where a predict that is a plain function runs.
        threads: Where all other plain functions of calls run.
        probe_threads: Where its health check runs.
        metrics_thread: Where its metrics are collected.
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
