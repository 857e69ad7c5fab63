"""What a sequence has of OpenAI's responses and conversations: items in their order, and who has brought which.

A sequence holds either a conversation, or a response and those that continue it, one after another. A response that is
continued a second time is a fork: a sequence of its own, which begins with a copy of what leads to it. Responses name
their items by ids. Each change is an entry of the sequence's log; what is deleted leaves it, since the state is then
written whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Self, TypeAlias

from ts.jobs.errors import NOT_FOUND, RowFailure
from ts.sequence.log_state import LogState

Item: TypeAlias = dict[str, Any]
#: A change: the mark, its kind, and what it brings.
Entry: TypeAlias = tuple[str, str, Any]

MARK: Final = "openai"
#: Kinds of changes.
CONVERSATION: Final = "conversation"
ITEMS: Final = "items"
RESPONSE: Final = "response"
#: Of a response that is made in the background; see `background_response`.
BEGUN: Final = "begun"
CLAIM: Final = "claim"
PART: Final = "part"
ENDED: Final = "ended"


class Messages(NamedTuple):
    """The messages of a chat completion that the first items have become; see `response_items.messages_of`.

    Attributes:
        items: How many items.
        made: The messages, which are never changed.
        thought: What the model has thought before the next message.
    """

    items: int = 0
    made: Sequence[dict[str, Any]] = ()
    thought: str = ""


NO_MESSAGES: Final = Messages()


class ConversationState(LogState):
    """The state; each change makes another one.

    Attributes:
        conversation: The conversation that the sequence is; None if it is a response and what continues it.
        items: All items by id, in order.
        responses: By id, in order: each a response without its output, the ids of its input and its output, and for one
            that is made in the background the ``run``.
        messages: Those of the items as far as a turn has made them, so that the next turn makes only the new ones.
    """

    __slots__ = ("conversation", "items", "messages", "responses")

    def __init__(
        self,
        conversation: Mapping[str, Any] | None = None,
        items: dict[str, Item] | None = None,
        responses: dict[str, Mapping[str, Any]] | None = None,
        messages: Messages = NO_MESSAGES,
    ) -> None:
        self.conversation = conversation
        self.items = items or {}
        self.responses = responses or {}
        self.messages = messages

    @classmethod
    def decoded(cls, plain: Sequence[Any]) -> Self:
        """Return the state of these values."""
        conversation, items, responses = plain
        return cls(conversation, {item["id"]: item for item in items}, dict(responses))

    def encoded(self) -> list[Any]:
        """Return the state as plain values."""
        return [self.conversation, list(self.items.values()), dict(self.responses)]

    def after(self, entry: Entry) -> ConversationState:
        """Return the state after a change."""
        _, kind, value = entry
        if kind == CONVERSATION:
            return ConversationState(value, self.items, self.responses, self.messages)
        if kind == ITEMS:
            return self._with(value, self.responses)
        if kind in (RESPONSE, BEGUN):
            kept = {
                "response": value["response"],
                "input": [item["id"] for item in value["input"]],
                "output": [item["id"] for item in value["output"]],
            }
            if kind == BEGUN:
                kept["run"] = {"request": value["request"], "number": 0, "at": 0.0, "parts": [], "tokens": []}
            added = [*value["input"], *value["output"]]
            return self._with(added, {**self.responses, value["response"]["id"]: kept})
        return self._after_background(kind, value)

    def _after_background(self, kind: str, value: Any) -> ConversationState:
        """Return the state after a change of a response that is made in the background."""
        added: list[Item] = []
        response_id = value["response"]["id"] if kind == ENDED else value["id"]
        kept = dict(self.responses[response_id])
        if kind == CLAIM:
            kept["run"] = {**kept["run"], "number": value["number"], "at": value["at"]}
        elif kind == PART:
            run = kept["run"]
            parts = [*run["parts"], value["pieces"]] if value["pieces"] else run["parts"]
            tokens = [*run.get("tokens", ()), *value.get("tokens", ())]  # without, it was begun by an older server
            kept["run"] = {**run, "parts": parts, "tokens": tokens, "at": value["at"]}
        else:
            added = value["output"]
            kept |= {"response": value["response"], "output": [item["id"] for item in value["output"]]}
            kept["run"] = {**kept["run"], "tokens": []}
        return self._with(added, {**self.responses, response_id: kept})

    def _with(self, added: Sequence[Item], responses: dict[str, Mapping[str, Any]]) -> ConversationState:
        """Return the state with these items, some of which may replace others, and these responses."""
        items = {**self.items, **_by_id(added)} if added else self.items
        are_new = len(items) == len(self.items) + len(added)
        return ConversationState(self.conversation, items, responses, self.messages if are_new else NO_MESSAGES)

    def run(self, response_id: str) -> dict[str, Any] | None:
        """Return how a response is made in the background; None if it is not. Raises RowFailure: there is none."""
        run: dict[str, Any] | None = self._kept(response_id).get("run")
        return run

    @property
    def latest(self) -> str | None:
        """The response that a further one continues in this sequence; None if there is none, or a conversation."""
        return next(reversed(self.responses), None) if self.conversation is None else None

    def response(self, response_id: str) -> dict[str, Any]:
        """Return a response. Raises RowFailure: there is none."""
        kept = self._kept(response_id)
        output = [self.items[each] for each in kept["output"] if each in self.items]
        return {**kept["response"], "output": output}

    def before(self, response_id: str) -> list[Item]:
        """Return the items that a response was given, the history included. Raises RowFailure: there is none."""
        return self._until(self._kept(response_id), with_output=False)

    def history(self, response_id: str) -> list[Item]:
        """Return the items that lead to what continues a response. Raises RowFailure: there is none."""
        return self._until(self._kept(response_id), with_output=True)

    def _kept(self, response_id: str) -> Mapping[str, Any]:
        kept = self.responses.get(response_id)
        if kept is None:
            raise not_found("Response", response_id)
        return kept

    def _until(self, kept: Mapping[str, Any], *, with_output: bool) -> list[Item]:
        its = {*kept["input"], *kept["output"]} if with_output else {*kept["input"]}
        later = 0
        for name in reversed(self.items):
            if name in its:
                break
            later += 1
        return list(islice(self.items.values(), len(self.items) - later))

    def without_response(self, response_id: str) -> ConversationState:
        """Return the state without a response, and without items that nothing needs. Raises RowFailure: there is none.

        What continues it needs its items. Those of a conversation stay.
        """
        self._kept(response_id)
        responses = {name: kept for name, kept in self.responses.items() if name != response_id}
        items = self.items
        if self.conversation is None:
            last = self._until(next(reversed(responses.values())), with_output=True) if responses else []
            items = _by_id(last)
        return ConversationState(self.conversation, items, responses)

    def without_item(self, item_id: str) -> ConversationState:
        """Return the state of a conversation without an item."""
        items = {name: item for name, item in self.items.items() if name != item_id}
        return ConversationState(self.conversation, items, self.responses)


def _by_id(items: Iterable[Item]) -> dict[str, Item]:
    return {item["id"]: item for item in items}


def entry_of(kind: str, value: Any) -> Entry:
    """Return a change as an entry of the log."""
    return (MARK, kind, value)


def is_entry(value: Any) -> bool:
    """Whether an entry of a log is one of these, and not of the model's handler."""
    return isinstance(value, tuple) and value[:1] == (MARK,)


def checked(value: Any) -> ConversationState:
    """Return a sequence's state. Raises RowFailure: it is another one, of a client that has used the id for its own."""
    if not isinstance(value, ConversationState):
        raise RowFailure(409, "This sequence holds something else than responses and conversations.")
    return value


def page(items: Sequence[Item], limit: int, after: str, order: str) -> dict[str, Any]:
    """Return a part of a list as OpenAI's API gives it. Raises RowFailure: ``after`` is not one of the items."""
    ordered = list(items) if order == "asc" else list(reversed(items))
    if after:
        place = next((place for place, item in enumerate(ordered) if item["id"] == after), None)
        if place is None:
            raise refused(f"after is {after[:20]!a}, which is not an item of this list.", "after")
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
    return RowFailure(404, f"{what} with id '{name}' not found.", details={"param": None, "code": code}, kind=NOT_FOUND)


def refused(message: str, param: str | None, code: str | None = None) -> RowFailure:
    """Return the failure for a request that is wrong in one field."""
    return RowFailure(400, message, details={"param": param, "code": code})
