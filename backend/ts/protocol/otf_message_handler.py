"""Streaming a response in parts, under the name that TorchServe has for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ts.context import Context

#: Of several processes that run one model together only the first answers.
_ANSWERS = os.environ.get("LOCAL_RANK", "0") == "0"

#: A handler that runs micro batches sends parts from several threads.
_sending = threading.Lock()


def send_intermediate_predict_response(
    ret: Any, req_id_map: Mapping[int, str], message: str, code: int, context: Context
) -> None:
    """Send one part of every row's response to its client at once; the handler's return value is the last part.

    ``ret`` has one element per row of the batch, as ``handle`` returns it; ``req_id_map`` has the rows to send to,
    ``context.request_ids`` for all. Another ``code`` than 200 ends them with the error ``message``.
    Raises ts.jobs.errors.JobsCancelled: no client of the batch waits any longer; let it pass, or clean up and
    return. RuntimeError: no batch runs.
    """
    if not _ANSWERS:
        return
    if context.send_part is None:
        raise RuntimeError("a part of a response can only be sent while the handler runs a batch")
    with _sending:
        context.send_part(ret, req_id_map, message, code)
