"""Answers every request with a stream of 100 chunks, as a language model that sends its tokens one by one would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ts.handler_utils.utils import send_intermediate_predict_response

if TYPE_CHECKING:
    from ts.context import Context

CHUNKS = 100
CHUNK = "token "


def handle(data: list[dict[str, Any]] | None, context: Context) -> list[str]:
    """Send all chunks but the last on their way; the last is the return value. Without rows (load time): nothing."""
    if not data:
        return []
    request_ids = context.request_ids or {}
    chunks = [CHUNK] * len(data)
    for _ in range(CHUNKS - 1):
        send_intermediate_predict_response(chunks, request_ids, "Intermediate Prediction success", 200, context)
    return chunks
