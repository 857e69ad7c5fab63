"""The log of responses and conversations: what each change makes of the state, and what leaves it."""

import copy
from typing import Any

import pytest

from ts.apis.openai.conversation_log import rebuild_beside
from ts.apis.openai.conversation_state import (
    BEGUN,
    CLAIM,
    CONVERSATION,
    ENDED,
    ITEMS,
    PART,
    RESPONSE,
    ConversationState,
    Entry,
    entry_of,
)
from ts.jobs.errors import RowFailure
from ts.sequence.encoding import StateEncoding
from ts.sequence.state_error import StateError


def item(name: str) -> dict[str, Any]:
    return {"id": name, "type": "message", "role": "user", "content": []}


def turn(name: str) -> Entry:
    """Return the entry of a response ``name`` to an item ``name``-in, with the output ``name``-out."""
    made = {"response": {"id": name, "status": "completed"}, "input": [item(f"{name}-in")]}
    return entry_of(RESPONSE, made | {"output": [item(f"{name}-out")]})


def state_of(*entries: Entry) -> ConversationState:
    state = ConversationState()
    for entry in entries:
        state = state.after(entry)
    return state


def ids(items: Any) -> list[str]:
    return [each["id"] for each in items]


def test_a_response_sees_what_leads_to_it() -> None:
    state = state_of(turn("a"), turn("b"), turn("c"))
    assert ids(state.before("b")) == ["a-in", "a-out", "b-in"]
    assert ids(state.history("b")) == ["a-in", "a-out", "b-in", "b-out"]
    assert ids(state.response("b")["output"]) == ["b-out"]
    assert state.latest == "c"
    with pytest.raises(RowFailure, match="'d' not found"):
        state.history("d")


def test_what_nothing_needs_leaves_with_a_response() -> None:
    state = state_of(entry_of(ITEMS, [item("old")]), turn("a"), turn("b"), turn("c"))
    without_b = state.without_response("b")
    assert ids(without_b.items.values()) == ids(state.items.values()), "c needs them"
    without_c = without_b.without_response("c")
    assert ids(without_c.items.values()) == ["old", "a-in", "a-out"]
    assert without_c.latest == "a"
    assert not without_c.without_response("a").items
    assert len(state.responses) == 3, "a state never changes"


def test_items_of_a_conversation_stay_until_they_are_deleted() -> None:
    state = state_of(entry_of(CONVERSATION, {"id": "conv"}), turn("a"))
    assert state.latest is None, "nothing in a conversation is continued as a response is"
    assert ids(state.without_response("a").items.values()) == ["a-in", "a-out"]
    without = state.without_item("a-out")
    assert without.response("a")["output"] == []
    assert ids(without.history("a")) == ["a-in"]


def test_a_response_in_the_background_grows() -> None:
    begun = {"response": {"id": "a", "status": "in_progress"}, "input": [item("a-in")], "output": [], "request": {}}
    claimed = entry_of(CLAIM, {"id": "a", "number": 1, "at": 1.0})
    brought: list[dict[str, Any]] = [{"pieces": [{"content": "x"}], "tokens": [1, 2]}, {"pieces": [], "tokens": [3]}]
    parts = [entry_of(PART, {"id": "a", "at": 2.0, **part}) for part in brought]
    state = state_of(entry_of(BEGUN, begun), claimed, *parts)
    run = {"request": {}, "number": 1, "at": 2.0, "parts": [[{"content": "x"}]], "tokens": [1, 2, 3]}
    assert state.run("a") == run
    ended = {"response": {"id": "a", "status": "completed"}, "output": [item("a-out")]}
    over = state.after(entry_of(ENDED, ended))
    assert ids(over.history("a")) == ["a-in", "a-out"]
    assert over.run("a") == run | {"tokens": []}, "nobody continues it"


def test_the_state_is_made_of_its_log_or_of_a_state_and_the_rest() -> None:
    entries = [turn("a"), turn("b")]
    encoding = StateEncoding()
    encoding.add(ConversationState, ConversationState.encoded, ConversationState.decoded)
    whole = encoding.decode(encoding.encode(state_of(entries[0])))
    read = [encoding.decode(encoding.encode(entry)) for entry in entries]
    for made in rebuild_beside(None)([None, whole], [read, read[1:]]):
        assert made.encoded() == state_of(*entries).encoded()


def test_states_of_the_handler_are_made_by_the_handler() -> None:
    def rebuild(states: list[Any], entries: list[list[Any]]) -> list[Any]:
        return [f"{state}{entry}" for state, entry in zip(states, entries, strict=True)]

    made = rebuild_beside(rebuild)(["x", None, None], [[1], [turn("a")], [("own", 2)]])
    assert (made[0], made[2]) == ("x[1]", "None[('own', 2)]")
    assert made[1].latest == "a"
    with pytest.raises(StateError, match="no method rebuild"):
        rebuild_beside(None)(["x"], [[1]])
    assert rebuild_beside(lambda *_: [])(["x"], [[1]]) == [], "the caller refuses what the handler returns"


def test_it_is_never_copied_before_a_step() -> None:
    state = state_of(turn("a"))
    assert copy.copy(state).items is state.items
