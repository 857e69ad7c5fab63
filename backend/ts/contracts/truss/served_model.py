"""A loaded Truss model and the resources that its calls share: slots, threads, limits."""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ts.contracts.truss.class_file import import_class
from ts.contracts.truss.encodings import to_json
from ts.contracts.truss.model_methods import Description, describe
from ts.contracts.truss.reply import JSON_HEADERS, TrussAnswer
from ts.contracts.truss.request_spans import NO_TRACE, Trace, Tracing
from ts.contracts.truss.slots import Slots
from ts.contracts.truss.threads import MOST_THREADS, Threads
from ts.protocol.messages import InferRow, Load

logger = logging.getLogger(__name__)

#: More than one, so that a health check that hangs does not block the next.
_PROBES_AT_ONCE: Final = 4


class HotReload:
    """Reloads a model's code from the Truss's folder while it serves: for development, if the Truss's owner allows it.

    The living model gets the class that the files define now, and keeps its state; its `load` does not run again. Calls
    that run end with the code that they began with. Code that cannot be loaded changes nothing.
    """

    def __init__(self, model: Any, model_dir: Path, config: Mapping[str, Any]) -> None:
        self._model = model
        self._model_dir = model_dir
        self._config = config

    def reload(self) -> tuple[TrussAnswer, Description | None]:
        """Reload the code from its files; return the answer for the client, and the new description or None."""
        class_before, modules_before = type(self._model), self._forget_modules()
        try:
            self._model.__class__ = import_class(self._model_dir, self._config)
            description = describe(self._model)
        except (Exception, SystemExit) as error:
            logger.exception("The model cannot be reloaded; it keeps its present code")
            self._model.__class__ = class_before
            self._forget_modules()
            sys.modules.update(modules_before)
            return TrussAnswer(422, JSON_HEADERS, to_json({"error": f"{type(error).__name__}: {error}"})), None
        logger.info("The model's code was reloaded from its files.")
        return TrussAnswer(200, JSON_HEADERS, to_json({"msg": "Hot reload complete"})), description

    def _forget_modules(self) -> dict[str, ModuleType]:
        """Remove the Truss's modules from ``sys.modules``, so that they are imported again; return them by name."""
        importlib.invalidate_caches()
        forgotten = {name: module for name, module in sys.modules.items() if self._is_own(module)}
        for name, module in forgotten.items():
            del sys.modules[name]
            if module.__file__ is not None:
                # Python compares compiled code by seconds and size, and a developer may be quicker.
                Path(importlib.util.cache_from_source(module.__file__)).unlink(missing_ok=True)
        return forgotten

    def _is_own(self, module: ModuleType) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and file.endswith(".py") and self._model_dir in Path(file).parents


class ServedTruss:
    """A loaded model; a worker creates one.

    Attributes:
        cancels_on_disconnect: Whether a coroutine of the model is cancelled when its client leaves.
        ends_failed_streams: Whether a stream that fails midway ends as if it were complete, as Truss does it.
        streaming_read_timeout: The longest gap between two chunks of a stream, in seconds.
        slots: Limits how many calls of predict run at once.
        alias_slots: Limits how many alias methods run at once; None for no limit.
        predict_threads: Run a predict that is a plain function.
        threads: Run all other plain functions of calls.
        probe_threads: Run the health check.
    """

    def __init__(
        self,
        load: Load,
        description: Description,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        tracing: Tracing | None = None,
        hot_reload: HotReload | None = None,
    ) -> None:
        self.name = load["model_name"]
        self.version = load["model_version"]
        self.max_response_size = load["max_response_size"]
        self.description = description
        runtime = config["runtime"]
        #: Which pings the server sends to a client of a WebSocket.
        self.transport: Mapping[str, Any] = runtime["transport"]
        self.cancels_on_disconnect = bool(options.get("cancelOnDisconnect"))
        self.ends_failed_streams = options.get("streamErrors") == "end"
        self.tracing = tracing
        self.hot_reload = hot_reload
        self.streaming_read_timeout: float = runtime["streaming_read_timeout"]
        concurrency: int = runtime["predict_concurrency"]
        self.slots = Slots(concurrency)
        alias_concurrency: int | None = options.get("aliasConcurrency")
        self.alias_slots = Slots(alias_concurrency) if alias_concurrency else None
        self.predict_threads = Threads("predict", concurrency)
        self.threads = Threads("step", MOST_THREADS)
        self.probe_threads = Threads("probe", _PROBES_AT_ONCE)
        self.metrics_thread = Threads("metrics", 1)

    def trace_of(self, row: InferRow) -> Trace:
        return NO_TRACE if self.tracing is None else self.tracing.trace_of(row)

    def close(self) -> None:
        """Start nothing more in threads, and have the last spans sent."""
        for threads in (self.predict_threads, self.threads, self.probe_threads, self.metrics_thread):
            threads.close()
        if self.tracing is not None:
            self.tracing.close()
