"""A response that is made in the background: the log has what was generated so far, and any worker continues it.

The server *claims* the response, has the chat completion made as a request of its own, and appends what comes in
groups. A claim has a number: what comes from an earlier one is refused, so two servers never append to one response. A
generation that broke off continues behind the tokens that the log has; a handler that sends no tokens makes it again,
and what the log has of it is left out. Events follow from the log alone: they are the same for each client, however
often it asks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ts.apis.openai.completion_chunks import merged
from ts.apis.openai.conversation_state import (
    CLAIM,
    ENDED,
    PART,
    ConversationState,
    Entry,
    entry_of,
    refused,
)
from ts.apis.openai.response_answers import IN_PROGRESS, ResponseAnswer, ended
from ts.apis.openai.response_items import ItemIds

#: After how many seconds without an append another server may claim a response.
STALE: Final = 10.0


class Change(NamedTuple):
    """What an operation appends to the log, and answers."""

    entries: Sequence[Entry]
    answer: dict[str, Any]


def claim(state: ConversationState, response_id: str, before: int) -> Change:
    """Let the caller generate a response, unless it has ended or another server generates it.

    Args:
        before: The number of the caller's claim before this one; 0 if it has had none.
    """
    run = _run_of(state, response_id)
    if not _is_running(state, response_id):
        return Change((), {"over": True})
    if run["number"] != before and abs(time.time() - run["at"]) < STALE:
        return Change((), {"wait": STALE})
    number = run["number"] + 1
    made = [piece for part in run["parts"] for piece in part]
    work = {"request": run["request"], "history": state.before(response_id), "made": made, "run": number}
    work["tokens"] = run.get("tokens", [])
    return Change([entry_of(CLAIM, {"id": response_id, "number": number, "at": time.time()})], work)


def append(state: ConversationState, response_id: str, body: Mapping[str, Any], ids: ItemIds) -> Change:
    """Append pieces, and how the response has ended once it has; the answer has whether the caller must stop.

    Args:
        body: ``run``, the number of the claim; ``pieces``, and the ``tokens`` that they are of, as far as the handler
            sends them; and ``end``, with ``reason`` and ``usage``, or ``error``.
    """
    run = _run_of(state, response_id)
    if not _is_running(state, response_id) or body["run"] != run["number"]:
        return Change((), {"over": True})
    # Clients get what was committed at a time in one go: more events would cost them and every later look at the log.
    part = {"id": response_id, "pieces": merged(body["pieces"]), "tokens": body["tokens"], "at": time.time()}
    entries = [entry_of(PART, part)]
    end = body.get("end")
    if end is not None:
        head = state.responses[response_id]["response"]
        if (error := end.get("error")) is not None:
            response = {**head, "status": "failed", "error": error}
        else:
            response = ended(head, end["reason"], end["usage"])
        entries.append(_end(state.after(entries[0]), response_id, response, ids))
    return Change(entries, {"over": end is not None})


def cancel(state: ConversationState, response_id: str, ids: ItemIds) -> Change:
    """End a response that is being made; one that has ended stays as it is. Raises RowFailure: it is another kind."""
    run = state.run(response_id)
    if run is None:
        raise refused("Only a response that was created with background: true can be cancelled.", None)
    if not _is_running(state, response_id):
        return Change((), state.response(response_id))
    response = {**state.responses[response_id]["response"], "status": "cancelled"}
    entry = _end(state, response_id, response, ids)
    return Change([entry], state.after(entry).response(response_id))


def events(state: ConversationState, response_id: str, after: int, ids: ItemIds) -> dict[str, Any]:
    """Return the events with a number greater than ``after``, the last number, and whether the response has ended."""
    is_over = not _is_running(state, response_id)
    answer, text = _replayed(state, response_id, ids, after)
    return {"events": text, "last": answer.count - 1, "over": is_over}


def _end(state: ConversationState, response_id: str, response: dict[str, Any], ids: ItemIds) -> Entry:
    answer, _ = _replayed(state, response_id, ids)
    answer.end(response)
    return entry_of(ENDED, {"response": response, "output": answer.items})


def _replayed(
    state: ConversationState, response_id: str, ids: ItemIds, after: int | None = None
) -> tuple[ResponseAnswer, str]:
    """Return a response as it was made, and its events after a number."""
    response = state.responses[response_id]["response"]
    head = {**response, "status": IN_PROGRESS}
    head |= dict.fromkeys(("completed_at", "incomplete_details", "usage", "error"))
    answer = ResponseAnswer(head, ids, after)
    texts = [answer.begin(), *(answer.add(piece) for part in _run_of(state, response_id)["parts"] for piece in part)]
    if response["status"] != IN_PROGRESS:
        texts.append(answer.end(response))
    return answer, "".join(texts)


def _run_of(state: ConversationState, response_id: str) -> Mapping[str, Any]:
    run = state.run(response_id)
    if run is None:
        raise refused(f"The response {response_id!r} was not created with background: true.", None)
    return run


def _is_running(state: ConversationState, response_id: str) -> bool:
    return bool(state.responses[response_id]["response"]["status"] == IN_PROGRESS)


def read_work(body: bytes) -> dict[str, Any]:
    """Return what `claim` has answered, which is the body of the request that generates."""
    work: dict[str, Any] = json.loads(body)
    return work
