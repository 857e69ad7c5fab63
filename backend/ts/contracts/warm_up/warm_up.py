"""Runs a model's warm-up requests before the worker says that the model is loaded.

The first calls of a model are slow: kernels are compiled or chosen, memory is allocated, files are read. A warm-up
request takes the way of a client's request through the decoder, the handler and the encoder, so that clients find all
of it done. A warm-up request that fails, fails the load.

With sequences each row of a batch belongs to one of its own, whose first step is the first call and whose state is
dropped after the last one. With continuous batching the handler is called until all rows have ended.
"""

import importlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final, TypedDict

from ts.jobs.errors import LoadError, RowFailure
from ts.jobs.row import Row
from ts.protocol.messages import OPEN_INFERENCE_REST, InferRow, Load
from ts.protocol.regular_files import read_regular
from ts.runtime.result_bodies import encode_body
from ts.runtime.torchserve_handler import TorchServeHandler
from ts.service import Service

logger = logging.getLogger(__name__)

#: Steps that a warm-up request may take with continuous batching.
_MOST_STEPS: Final = 10_000
#: Of a file with a request.
_MOST_BYTES: Final = 1 << 30


class Warmup(TypedDict):
    """A request that the worker runs before it says that the model is loaded."""

    file: str | None  # in the model's folder: the body; None with ``inputs``
    content_type: str | None
    inputs: list[list[Any]]  # [name, datatype, shape] of tensors of zeros
    rows: int  # such requests in one batch
    calls: int


def prepare(
    service: Service,
    runtime: TorchServeHandler,
    load: Load,
    requests: list[Warmup],
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Run the warm-up requests of a model, and log how long they took.

    Args:
        wait_for: Runs a coroutine to its end; required for an asynchronous handler.

    Raises:
        LoadError: A request failed; memory that ran out is its cause.
    """
    for number, request in enumerate(requests):
        what = request["file"] or ", ".join(name for name, _, _ in request["inputs"])
        label = f"Warm-up request {number} ({what}, {request['rows']} in a batch)"
        seconds = []
        try:
            wire_rows = [_wire_row(request, load, f"warm-up-{row}") for row in range(request["rows"])]
            steps = service.steps
            with nullcontext() if steps is None else steps.rehearse([row.job_id for row in wire_rows]):
                for number_of_call in range(request["calls"]):
                    started = time.perf_counter()
                    _call(service, runtime, wire_rows, wait_for, begins=number_of_call == 0)
                    seconds.append(time.perf_counter() - started)
        except Exception as error:
            reason = str(error) if isinstance(error, (RowFailure, LoadError)) else f"{type(error).__name__}: {error}"
            raise LoadError(f"{label} failed: {reason}") from error
        last = f", the last of {len(seconds)} calls {seconds[-1] * 1000:.1f} ms" if len(seconds) > 1 else ""
        logger.info("%s took %.1f ms%s", label, seconds[0] * 1000, last)
    service.context.metrics.take_records()  # metrics are about clients' requests


def _call(
    service: Service,
    runtime: TorchServeHandler,
    wire_rows: list[InferRow],
    wait_for: Callable[[Awaitable[Any]], Any] | None,
    *,
    begins: bool,
) -> None:
    rows = [runtime.read_row(wire_row) for wire_row in wire_rows]
    for row in rows:
        row.begins_sequence = begins and service.steps is not None
    for _ in range(_MOST_STEPS):
        batch = runtime.new_batch(rows)
        service.context.send_part = _receive_part
        try:
            results = service.entry_point([row.data for row in rows], service.context)
            if wait_for is not None and hasattr(results, "__await__"):
                results = wait_for(results)
            results = batch.checked(results)
            going_on = runtime.going_on(rows, results)
        finally:
            service.context.send_part = None
        for row, result in zip(rows, results, strict=True):
            _check(row, result, more=row in going_on)
        rows = going_on
        if not rows:
            return
        for row in rows:
            row.data = {}
            row.reset_response()
    raise LoadError(f"the handler has not ended {len(rows)} rows in {_MOST_STEPS:,} steps")


def _check(row: Row, result: Any, *, more: bool) -> None:
    """Encode a result as an answer. Raises LoadError: it is an error; or what an encoder raises."""
    if (error := row.error) is not None:
        raise LoadError(f"the handler answered with status {error.status}: {error.message}")
    status = row.get_response_status_code() or 200
    if status >= 400:
        raise LoadError(f"the handler answered with status {status}: {str(result)[:200]}")
    if more and result is None:  # a step that has sent nothing
        return
    if row.encode is None:
        encode_body(result)
    else:
        row.encode(row, result, more)


def _receive_part(ret: Any, req_id_map: Mapping[int, str], message: str, code: int, *about: Any) -> None:
    """Stand for the client of a streaming handler."""
    if code != 200:
        raise LoadError(f"the handler answered with status {code}: {message}")


def _wire_row(request: Warmup, load: Load, job_id: str) -> InferRow:
    headers = ((load["header_keys"][0], job_id),) if load["sequences"] else ()
    if request["file"] is not None:
        content = read_regular(os.path.join(load["model_dir"], request["file"]), _MOST_BYTES)  # noqa: PTH118
        return InferRow(job_id, headers, request["content_type"], content, None, False)
    module = load["protocols"].get(OPEN_INFERENCE_REST)
    if module is None:
        raise LoadError("inputs need the Open Inference Protocol, which this server does not have; give a file")
    row: InferRow = importlib.import_module(module).row_of_zeros(job_id, request["inputs"])
    return row._replace(headers=(*row.headers, *headers))
