"""The items of a conversation: messages, calls of functions and their results, as OpenAI's realtime API has them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from torchserve_py.apis.realtime.client_events import BadEvent

_MAX_ID: Final = 512
#: What a conversation can have: items, and bytes of JSON.
_MOST_ITEMS: Final = 10_000
_MOST_BYTES: Final = 16 << 20
_MESSAGE: Final = "message"
_CALL: Final = "function_call"
_OUTPUT: Final = "function_call_output"
#: The type of content that is a picture.
IMAGE: Final = "input_image"
#: The types of content that a client can give the messages of a role, and the member of each that says what it is.
_CONTENT: Final[Mapping[str, Mapping[str, str]]] = {
    "system": {"input_text": "text"},
    "user": {"input_text": "text", "input_audio": "transcript", IMAGE: "image_url"},
    "assistant": {"output_text": "text", "text": "text", "output_audio": "transcript"},
}


class SpokenPiece(msgspec.Struct):
    """A part of a spoken message: its text, and how long it sounds (seconds)."""

    text: str
    seconds: float


class Item:
    """One item.

    Attributes:
        kind: Its type: message, function_call or function_call_output.
        members: What it has besides id, type and status, as the API shows it.
        status: completed, incomplete or in_progress.
        spoken: Of a message that was spoken to the user: what of it counts as heard, piece by piece.
        made: Of such a message: how much audio there was (seconds).
        heard: Of a message that the user has spoken: it is done once the words are known, or that there are none.
    """

    def __init__(self, kind: str, members: dict[str, Any], item_id: str | None = None) -> None:
        self.id = item_id or f"item_{secrets.token_hex(12)}"
        self.kind = kind
        self.members = members
        self.status = "completed"
        self.spoken: list[SpokenPiece] = []
        self.made = 0.0
        self.heard: asyncio.Future[None] | None = None

    def shown(self) -> dict[str, Any]:
        """Return the item as clients see it; audio is not kept."""
        return {"id": self.id, "object": "realtime.item", "type": self.kind, "status": self.status, **self.members}

    @property
    def text(self) -> str:
        """The words of a message."""
        return " ".join(filter(None, (part.get("text") or part.get("transcript") for part in self.members["content"])))

    @property
    def images(self) -> list[dict[str, Any]]:
        """The pictures of a message: their parts."""
        return [part for part in self.members["content"] if part["type"] == IMAGE]

    @property
    def seconds(self) -> float:
        """How long a spoken message is."""
        return sum(piece.seconds for piece in self.spoken)

    def truncate(self, seconds: float) -> None:
        """Keep of a spoken message what is heard within ``seconds``: of the piece that is cut a share of its words."""
        kept: list[SpokenPiece] = []
        for piece in self.spoken:
            if seconds >= piece.seconds:
                kept.append(piece)
            elif seconds > 0:
                words = piece.text.split()
                space = piece.text[: len(piece.text) - len(piece.text.lstrip())]  # between it and the piece before
                text = space + " ".join(words[: int(len(words) * seconds / piece.seconds)])
                kept.append(SpokenPiece(text, seconds))
            seconds -= piece.seconds
        self.spoken = kept
        self.members["content"][0]["transcript"] = "".join(piece.text for piece in kept).strip()


def spoken_by_user(item_id: str) -> Item:
    """Return the item of an utterance whose words are not known yet."""
    item = Item(_MESSAGE, {"role": "user", "content": [{"type": "input_audio", "transcript": None}]}, item_id)
    item.heard = asyncio.get_running_loop().create_future()
    return item


def answer_item(*, is_audio: bool) -> Item:
    """Return the message of a response that begins."""
    part = {"type": "output_audio", "transcript": ""} if is_audio else {"type": "output_text", "text": ""}
    item = Item(_MESSAGE, {"role": "assistant", "content": [part]})
    item.status = "in_progress"
    return item


def call_item(name: str, call_id: str) -> Item:
    """Return a call of a function that begins."""
    item = Item(_CALL, {"name": name, "call_id": call_id, "arguments": ""})
    item.status = "in_progress"
    return item


class _Given(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    id: str | None = None
    object: str | None = None
    status: str | None = None
    role: str | None = None
    content: list[dict[str, Any]] | None = None
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | None = None


def read_item(given: Any) -> Item:
    """Return the item that a client gives. Raises BadEvent: it is none, or one that this server does not have."""
    try:
        read = msgspec.convert(given, _Given)
    except msgspec.ValidationError as error:
        raise BadEvent(f"item: {error}", "invalid_value", "item") from error
    if read.id is not None and not 0 < len(read.id) <= _MAX_ID:
        raise BadEvent(
            f"item.id: an id has 1 to {_MAX_ID} characters, this one {len(read.id)}.", "invalid_value", "item.id"
        )
    if read.type == _MESSAGE:
        return Item(_MESSAGE, _message(read), read.id)
    wanted = {_CALL: ("name", "arguments"), _OUTPUT: ("call_id", "output")}.get(read.type)
    if wanted is None:
        known = f"{_MESSAGE}, {_CALL} and {_OUTPUT}"
        raise BadEvent(f"item.type: {read.type[:100]!a}; there are {known}.", "invalid_value", "item.type")
    for name in wanted:
        if getattr(read, name) is None:
            raise BadEvent(f"item.{name} is missing.", "missing_required_parameter", f"item.{name}")
    call_id = read.call_id or f"call_{secrets.token_hex(8)}"
    if read.type == _CALL:
        return Item(_CALL, {"name": read.name, "call_id": call_id, "arguments": read.arguments}, read.id)
    return Item(_OUTPUT, {"call_id": call_id, "output": read.output}, read.id)


def _message(read: _Given) -> dict[str, Any]:
    known = _CONTENT.get(read.role or "")
    if known is None:
        message = f"item.role: {read.role!a}; there are {', '.join(_CONTENT)}."
        raise BadEvent(message, "invalid_value", "item.role")
    if not read.content:
        raise BadEvent("item.content: a message has at least one part.", "missing_required_parameter", "item.content")
    return {"role": read.role, "content": [_part(part, known, place) for place, part in enumerate(read.content)]}


def _part(given: dict[str, Any], known: Mapping[str, str], place: int) -> dict[str, Any]:
    kind, param = given.get("type"), f"item.content[{place}]"
    member = known.get(kind) if isinstance(kind, str) else None
    if member is None:
        raise BadEvent(f"{param}.type: {kind!a}; here are {', '.join(known)}.", "invalid_value", f"{param}.type")
    if given.get("audio") is not None:
        message = f"{param}.audio: send audio with input_audio_buffer.append; an item has the transcript alone."
        raise BadEvent(message, "unsupported_parameter", f"{param}.audio")
    text = given.get(member)
    if not isinstance(text, str):
        raise BadEvent(f"{param}.{member} is {text!a}; it is a text.", "invalid_value", f"{param}.{member}")
    if unknown := given.keys() - {"type", "audio", "text", "transcript", "image_url", "detail"}:
        name = f"{param}.{min(unknown)}"
        raise BadEvent(f"{name} is not supported.", "unknown_parameter", name)
    if kind != IMAGE:
        return {"type": kind, member: text}
    if not text.startswith("data:image/"):
        message = f"{param}.image_url: {text[:100]!a}; a data URI is right: data:image/png;base64,…"
        raise BadEvent(message, "invalid_value", f"{param}.image_url")
    return {"type": kind, member: text, "detail": str(given.get("detail") or "auto")}


class Conversation:
    """The items in their order.

    Attributes:
        dropped: The ids of those that the chat model no longer gets, because the conversation is too long for it.
    """

    def __init__(self) -> None:
        self.dropped = set[str]()
        self._items: dict[str, Item] = {}
        #: Bytes of JSON that the items had when they were added, together.
        self._size = 0

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._items.values()))

    def before(self, item: Item) -> str | None:
        """Return the id of the item before one, None if it is the first."""
        ids = list(self._items)
        place = ids.index(item.id)
        return ids[place - 1] if place else None

    def add(self, item: Item, after: str | None = None) -> None:
        """Add an item behind another one, at the beginning ("root"), or at the end (None).

        Raises BadEvent: there is no such item, the id is taken, or there is no room.
        """
        if item.id in self._items:
            message = f"The conversation has an item {item.id!a} already."
            raise BadEvent(message, "item_create_duplicate_item_id", "item.id")
        if after not in (None, "root") and after not in self._items:
            message = f"The conversation has no item {after[:100]!a}."
            raise BadEvent(message, "item_create_invalid_previous_item_id", "previous_item_id")
        size = len(msgspec.json.encode(item.members))
        if len(self._items) >= _MOST_ITEMS or self._size + size > _MOST_BYTES:
            message = f"A conversation has up to {_MOST_ITEMS} items of {_MOST_BYTES} bytes together; delete some."
            raise BadEvent(message, "conversation_full")
        self._size += size
        if after is None:
            self._items[item.id] = item
            return
        ids = list(self._items)
        ids.insert(0 if after == "root" else ids.index(after) + 1, item.id)
        self._items[item.id] = item
        self._items = {each: self._items[each] for each in ids}

    def get(self, item_id: str | None, deed: str) -> Item:
        """Return an item. Raises BadEvent: the conversation does not have it, for what ``deed`` names."""
        found = self._items.get(item_id or "")
        if found is None:
            message = f"The conversation has no item {(item_id or '')[:100]!a}."
            raise BadEvent(message, f"item_{deed}_invalid_item_id", "item_id")
        return found

    def find(self, item_id: str) -> Item | None:
        """Return an item, None if it is not there any more."""
        return self._items.get(item_id)

    def has(self, item: Item) -> bool:
        """Return whether an item is there still."""
        return item.id in self._items

    def delete(self, item_id: str | None) -> Item:
        """Remove an item, and return it. Raises BadEvent: there is none."""
        item = self.get(item_id, "delete")
        del self._items[item.id]
        self._size = max(0, self._size - len(msgspec.json.encode(item.members)))
        return item


def newest(items: Sequence[Item], share: float) -> Sequence[Item]:
    """Return the last items that together have a share of the bytes; at least one fewer, but the last one.

    The result of a function without its call is left out, too.
    """
    sizes = [len(msgspec.json.encode(item.members)) for item in items]
    room = min(share * sum(sizes), sum(sizes) - 1) - sizes[-1]
    first = len(items) - 1
    while first > 0 and sizes[first - 1] <= room:
        first -= 1
        room -= sizes[first]
    while first < len(items) - 1 and items[first].kind == _OUTPUT:
        first += 1
    return items[first:]


def as_messages(instructions: str, items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return items as the messages of a chat completion; messages without words or pictures are left out."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
    for item in items:
        members = item.members
        if item.kind == _OUTPUT:
            messages.append({"role": "tool", "tool_call_id": members["call_id"], "content": members["output"]})
        elif item.kind == _CALL:
            function = {"name": members["name"], "arguments": members["arguments"]}
            call = {"id": members["call_id"], "type": "function", "function": function}
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.images:
            messages.append({"role": members["role"], "content": [_content_part(part) for part in members["content"]]})
        elif item.text:
            messages.append({"role": members["role"], "content": item.text})
    return messages


def _content_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == IMAGE:
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
    return {"type": "text", "text": part.get("text") or part.get("transcript") or ""}
