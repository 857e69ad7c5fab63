"""The messages that a handler gets for items: each turn makes only those of its new items."""

import copy
import json
import pickle
from typing import Any

import pytest

from ts.apis.openai.conversation_state import ITEMS, NO_MESSAGES, RESPONSE, ConversationState, entry_of
from ts.apis.openai.response_items import ItemIds, for_handler, messages_of, read_items

_CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
_IMAGE = {"type": "input_image", "image_url": "data:,"}
ITEMS_OF_ALL_KINDS: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "well"}]},
    {"role": "assistant", "content": "b"},
    _CALL,
    _CALL,
    {"type": "function_call_output", "call_id": "c", "output": "seen"},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}]},
    _CALL,
    {"role": "user", "content": [_IMAGE]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "cut off"}]},
    {"role": "user", "content": "c"},
]


def items(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return read_items(list(given or ITEMS_OF_ALL_KINDS), "input", ItemIds(""))


@pytest.mark.parametrize("first", range(len(ITEMS_OF_ALL_KINDS) + 1))
def test_messages_are_the_same_if_they_are_made_in_two_turns(first: int) -> None:
    read = items()
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "data:,", "detail": "auto"}}
    whole = messages_of(read)
    assert whole.made == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "well", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
        {"role": "assistant", "content": None, "reasoning": "so", "tool_calls": [call]},
        {"role": "user", "content": [image]},
        {"role": "user", "content": "c"},
    ]
    before = messages_of(read[:first])
    kept = copy.deepcopy(before)
    assert messages_of(read, before) == whole
    assert before == kept, "an earlier turn may be continued again"


def test_a_turn_makes_only_the_messages_of_its_new_items() -> None:
    state = ConversationState().after(entry_of(ITEMS, items()))
    state.messages = messages_of([*state.items.values()])
    entry = {"response": {"id": "r"}, "input": items({"role": "user", "content": "d"}), "output": []}
    state = state.after(entry_of(RESPONSE, entry))
    made = messages_of([*state.items.values()], state.messages).made
    assert all(one is other for one, other in zip(made, state.messages.made, strict=False))
    assert made[-1] == {"role": "user", "content": "d"}


def test_they_are_made_again_if_an_item_has_changed() -> None:
    (item,) = items({"role": "user", "content": "a"})
    state = ConversationState().after(entry_of(ITEMS, [item]))
    state.messages = messages_of([item])
    changed = {**item, "content": [{"type": "input_text", "text": "b"}]}
    assert state.after(entry_of(ITEMS, [changed])).messages == NO_MESSAGES
    assert state.without_item(item["id"]).messages == NO_MESSAGES


def test_a_handler_changes_copies_and_not_what_other_turns_have() -> None:
    made = messages_of(items()).made
    kept = copy.deepcopy(made)
    for message in for_handler(made):
        for part in (*(message["content"] or ()), *message.get("tool_calls", ())):
            if isinstance(part, dict):
                part.clear()
        if type(message) is dict:
            message.clear()
            continue
        with pytest.raises(TypeError, match="change a copy of it"):
            message["content"] = "changed"
        with pytest.raises(TypeError, match="change a copy of it"):
            message.update(content="changed")
        for changed in (dict(message), message | {}, copy.copy(message), copy.deepcopy(message), message.copy()):
            changed["content"] = "changed"
        assert pickle.loads(pickle.dumps(message)) == message == json.loads(json.dumps(message))
    assert made == kept
