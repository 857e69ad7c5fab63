"""The items of a conversation, kept by its chat model as one of OpenAI's Conversations, so that a session can resume.

An item is kept before the client is told that it is done. ``GET /v1/conversations/{id}/items`` lists what is kept.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable
from typing import Any, Final, Self

from torchserve_py.apis.openai.background_runs import BackgroundResponse
from torchserve_py.apis.realtime.conversation_items import IMAGE, Conversation, Item
from ts.apis.openai.openai_calls import ResponsesCall

#: Items of a page of the list.
_PAGE: Final = 100
_TEXTS: Final = {"assistant": "output_text"}


class KeptConversation:
    """The kept items; ``steps`` runs operations on the conversation, and ``kept`` has the ids of those that are there.

    Methods raise StepRefused: the model keeps the conversation no more, or cannot keep it now.
    """

    def __init__(self, steps: BackgroundResponse, kept: Iterable[str] | None = None) -> None:
        self._steps = steps
        self._is_new = kept is None
        self._kept = set(kept or ())
        self._turn = asyncio.Lock()

    @classmethod
    async def resumed(cls, steps: BackgroundResponse) -> tuple[Self, list[Item]]:
        """Return the log of a conversation that is kept, and its items."""
        items: list[Item] = []
        page: dict[str, Any] = {"has_more": True, "last_id": None}
        while page["has_more"]:
            call = ResponsesCall("list_items", steps.id, limit=_PAGE, after=page["last_id"] or "", order="asc")
            page = await steps.step(call)
            items += map(_item, page["data"])
        return cls(steps, [item.id for item in items]), items

    async def keep(self, item: Item, conversation: Conversation) -> None:
        """Keep an item as it is now, at its place in the conversation."""
        async with self._turn:
            if not conversation.has(item):
                return
            ids = [each.id for each in conversation if each.id in self._kept or each is item]
            body: dict[str, Any] = {"items": [_plain(item)]}
            if item.id not in self._kept and ids[-1] != item.id:
                body["order"] = ids
            call = ResponsesCall("keep_items", self._steps.id, is_new=self._is_new)
            await self._steps.step(call, json.dumps(body).encode(), self._request_id())
            self._is_new = False
            self._kept.add(item.id)

    async def delete(self, item: Item) -> None:
        """Forget an item."""
        async with self._turn:
            if item.id in self._kept:
                call = ResponsesCall("delete_item", self._steps.id, item=item.id)
                await self._steps.step(call, b"", self._request_id())
                self._kept.discard(item.id)

    def _request_id(self) -> str:
        return f"{self._steps.id}/{secrets.token_hex(8)}"


def _plain(item: Item) -> dict[str, Any]:
    """Return an item as an item of Conversations."""
    about = {"id": item.id, "type": item.kind, "status": item.status}
    if item.kind != "message":
        return {**about, **item.members}
    role = item.members["role"]
    part: dict[str, Any] = {"type": _TEXTS.get(role, "input_text"), "text": item.text}
    if role == "assistant":
        part["annotations"] = []
    return {**about, "role": role, "content": [part, *item.images]}


def _item(kept: dict[str, Any]) -> Item:
    """Return an item of Conversations as one of a session."""
    members = {name: value for name, value in kept.items() if name not in ("id", "type", "status")}
    if kept["type"] == "message":
        members = {"role": kept["role"], "content": [_part(part) for part in kept["content"]]}
    item = Item(kept["type"], members, kept["id"])
    item.status = kept.get("status") or "completed"
    return item


def _part(kept: dict[str, Any]) -> dict[str, Any]:
    names = ("type", "image_url", "detail") if kept["type"] == IMAGE else ("type", "text")
    return {name: kept[name] for name in names}
