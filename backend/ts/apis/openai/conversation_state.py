"""What a sequence has of OpenAI's responses and conversations: plain values, so that every store can keep them.

A sequence holds either a conversation, or a response and all that continue it, directly or by way of others. A response
that continues another one names it as its parent; so one response may be continued in several ways, and each of them
sees only what leads to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from ts.jobs.errors import RowFailure

#: The state, made anew by each function that changes it.
State: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Any]

_MARK: Final = "openai_responses"


def checked(value: Any) -> State:
    """Return a sequence's state. Raises Failure: it is another one, of a client that has used the id for its own."""
    if not isinstance(value, dict) or value.get("kind") != _MARK:
        raise RowFailure(409, "This sequence holds something else than responses and conversations.")
    return value


def empty(conversation: Mapping[str, Any] | None = None, items: Sequence[Item] = ()) -> State:
    """Return the state of a sequence that begins; ``conversation`` is that which it holds, if it does."""
    return {
        "kind": _MARK,
        "responses": {},
        "conversation": None if conversation is None else dict(conversation),
        "items": list(items),
    }


def response_of(state: State, response_id: str) -> dict[str, Any]:
    """Return a response as ``response``, with its ``parent`` and its ``input``. Raises Failure: there is none."""
    found = state["responses"].get(response_id)
    if found is None or found["deleted"]:
        raise not_found("Response", response_id)
    entry: dict[str, Any] = found
    return entry


def conversation_of(state: State, conversation_id: str) -> dict[str, Any]:
    """Return the conversation that the sequence holds. Raises Failure: it holds none."""
    found: dict[str, Any] | None = state["conversation"]
    if found is None:
        raise not_found("Conversation", conversation_id)
    return found


def history(state: State, parent: str | None) -> list[Item]:
    """Return the items that lead to what follows a response; those of the conversation if there is no response."""
    if parent is None:
        return list(state["items"])
    steps: list[list[Item]] = []
    at: str | None = parent
    while at is not None:
        entry = state["responses"][at]
        steps.append([*entry["input"], *entry["response"]["output"]])
        at = entry["parent"]
    return [item for step in reversed(steps) for item in step]


def with_response(state: State, parent: str | None, given: Sequence[Item], response: Mapping[str, Any]) -> State:
    """Return the state with one more response, to these items."""
    entry = {"parent": parent, "input": list(given), "response": dict(response), "deleted": False}
    responses = state["responses"] | {response["id"]: entry}
    items = state["items"]
    if state["conversation"] is not None:
        items = [*items, *given, *response["output"]]
    return state | {"responses": responses, "items": items}


def without_response(state: State, response_id: str) -> State:
    """Return the state without a response; those that continue it keep what it said. Raises Failure: there is none."""
    entry = response_of(state, response_id) | {"deleted": True}
    return state | {"responses": state["responses"] | {response_id: entry}}


def page(items: Sequence[Item], limit: int, after: str, order: str) -> dict[str, Any]:
    """Return a part of a list as OpenAI's API gives it. Raises Failure: ``after`` is not one of the items."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        place = next((place for place, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise refused(f"after is {after!r}, which is not an item of this list.", "after")
        ordered = ordered[place + 1 :]
    data = ordered[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > limit,
    }


def not_found(what: str, name: str, code: str | None = None) -> RowFailure:
    """Return the failure for something that is not there."""
    return RowFailure(404, f"{what} with id '{name}' not found.", details={"param": None, "code": code})


def refused(message: str, param: str | None, code: str | None = None) -> RowFailure:
    """Return the failure for a request that is wrong in one field."""
    return RowFailure(400, message, details={"param": param, "code": code})
