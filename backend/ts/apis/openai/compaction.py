"""Compaction: the model sums a history up, and an item with the summary takes the history's place.

OpenAI's servers encrypt the summary. Here the item has it as it is, after a mark: any server and model can go on with
it, and items of other servers are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ts.apis.openai.conversation_state import Item, refused
from ts.jobs.errors import RowFailure

COMPACTION: Final = "compaction"
_CONTENT: Final = "encrypted_content"
_MARK: Final = "summary/1\n"
_PROMPT: Final = (
    "Summarize our conversation so far, so that it can be continued from your summary alone. Keep what was asked for,"
    " what was decided and found out, results of tools, names, numbers, and what is still to be done. Write only the"
    " summary."
)
_TITLE: Final = "Summary of the conversation so far:\n"


def asked_for(completion: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chat completion that sums up what another one would answer."""
    messages = [*completion["messages"], {"role": "user", "content": _PROMPT}]
    return {**completion, "messages": messages}


def compacted(items: Sequence[Item], completion: Mapping[str, Any], item_id: str) -> list[Item]:
    """Return what takes the place of items: the messages that the model has not said, and the summary.

    Raises RowFailure: the chat completion has no summary, or a part of one. LookupError, TypeError: it is none.
    """
    choice = completion["choices"][0]
    summary = choice["message"].get("content")
    if choice.get("finish_reason") == "length":
        raise refused("The summary is longer than the model may answer. Raise max_output_tokens.", "max_output_tokens")
    if not isinstance(summary, str) or not summary.strip():
        raise RowFailure(502, "The model has answered without a summary.")
    kept = [item for item in items if item["type"] == "message" and item["role"] != "assistant"]
    return [*kept, _item(item_id, _MARK + summary.strip())]


def read_compaction(item: Mapping[str, Any], name: str, param: str, item_id: str) -> Item:
    """Return a client's item. Raises RowFailure: no server of this kind has made it."""
    content = item.get(_CONTENT)
    if not isinstance(content, str) or not content.startswith(_MARK):
        message = f"{name}.{_CONTENT} is none that POST /v1/responses/compact of this server has returned."
        raise refused(message, param)
    return _item(item_id, content)


def message_of(item: Item) -> dict[str, Any]:
    """Return what the model gets for an item."""
    return {"role": "assistant", "content": _TITLE + item[_CONTENT].removeprefix(_MARK)}


def _item(item_id: str, content: str) -> Item:
    return {"id": item_id, "type": COMPACTION, _CONTENT: content}
