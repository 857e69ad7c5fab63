"""Runs the steps of a handler side by side: while one part of a batch is in the model, the next is prepared."""

import functools
import operator
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ts.torch_handler.built_in_rows import BadRowError, RowsApartError, answer_rows

_STEPS = ("preprocess", "inference", "postprocess")


class MicroBatching:
    """A ``handle`` that cuts each batch into micro batches and runs every step in threads of its own.

    A handler takes it in place of its own: ``self.handle = MicroBatching(self)`` in ``__init__``. Its steps must be
    able to run at the same time. ``parallelism`` is the number of threads for each of "preprocess", "inference" and
    "postprocess", 1 unless given. Raises ValueError: a size or number is below 1, or a step is unknown.
    """

    def __init__(
        self, parent_handler: Any, micro_batch_size: int = 1, parallelism: Mapping[str, int] | None = None
    ) -> None:
        if micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be at least 1, got {micro_batch_size!r}")
        self.handler = parent_handler
        self.micro_batch_size = micro_batch_size
        self._parallelism: dict[str, int] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._running = threading.local()
        self._use_threads(dict.fromkeys(_STEPS, 1) | dict(parallelism or {}))

    @property
    def parallelism(self) -> dict[str, int]:
        """The number of threads of each step; an assigned mapping changes the steps that it names."""
        return dict(self._parallelism)

    @parallelism.setter
    def parallelism(self, parallelism: Mapping[str, int]) -> None:
        self._use_threads(parallelism)

    def _use_threads(self, parallelism: Mapping[str, int]) -> None:
        for step, threads in parallelism.items():
            if step not in _STEPS:
                raise ValueError(f"there is no step {step!r}; the steps are {', '.join(_STEPS)}")
            if threads < 1:
                raise ValueError(f"the step {step} needs at least 1 thread, got {threads!r}")
        for step, threads in parallelism.items():
            if self._parallelism.get(step) != threads:
                if step in self._threads:
                    self._threads[step].shutdown()
                self._threads[step] = ThreadPoolExecutor(threads, thread_name_prefix=step)
                self._parallelism[step] = threads

    def __call__(self, data: Any, context: Any) -> list[Any]:
        """Answer a batch, as `BaseHandler.handle` does."""
        started = time.perf_counter()
        self.handler.context = context
        output = answer_rows(self._answer, data, context)
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - started) * 1000, 2), None, "ms")
        return output

    def _answer(self, data: Any) -> list[Any]:
        handler = self.handler
        output: list[Any]
        if handler._is_describe():
            return [handler.describe_handle()]
        if os.environ.get("ENABLE_TORCH_PROFILER"):
            output, _ = handler._infer_with_profiler(data=data)
        elif handler._is_explain():
            output = handler.explain_handle(handler.preprocess(data), data)
        else:
            output = self.handle(data)
        return output

    def handle(self, data: list[Any]) -> list[Any]:
        """Return one result per row. Raises Exception: what the first micro batch that failed raised; all ended."""
        size = self.micro_batch_size
        # A step waits only for the one before it, which was submitted earlier: no thread waits for a later one.
        futures: list[Future[Any]] = []
        finals: list[tuple[int, Future[Any]]] = []
        for index, start in enumerate(range(0, len(data), size)):
            rows = functools.partial(operator.getitem, data, slice(start, start + size))
            prepared = self._submit("preprocess", index, rows)
            output = self._submit("inference", index, prepared.result)
            final = self._submit("postprocess", index, output.result)
            finals.append((start, final))
            futures += [prepared, output, final]
        try:
            return [result for start, final in finals for result in _results(start, final, len(data))]
        finally:
            for future in futures:
                future.cancel()
            wait(futures)

    def get_micro_batch_idx(self) -> int | None:
        """Return which micro batch of the batch the calling thread works on; None outside the steps."""
        return getattr(self._running, "index", None)

    def shutdown(self) -> None:
        """End the threads; the object cannot be used afterwards."""
        for threads in self._threads.values():
            threads.shutdown()

    def _submit(self, step: str, index: int, take: Callable[[], Any]) -> Future[Any]:
        return self._threads[step].submit(self._run, getattr(self.handler, step), index, take)

    def _run(self, step: Callable[[Any], Any], index: int, take: Callable[[], Any]) -> Any:
        data = take()
        self._running.index = index
        try:
            return step(data)
        finally:
            self._running.index = None


def _results(start: int, final: Future[Any], count: int) -> Any:
    """Return the results of a micro batch from row ``start`` of ``count`` on; errors name the rows of the batch."""
    try:
        return final.result()
    except BadRowError as error:
        raise BadRowError(start + error.row, error.message, error.error_code) from error
    except RowsApartError as error:
        groups = [[start + row for row in group] for group in error.groups]
        others = sorted(set(range(count)).difference(*groups))
        raise RowsApartError(error.message, [*groups, others] if others else groups) from error
