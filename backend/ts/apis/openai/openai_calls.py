"""What the server tells a worker of a call of OpenAI's Responses or Conversations, next to its body."""

import json
from dataclasses import asdict, dataclass
from typing import Final

#: The name, in `ts.protocol.messages.InferRow.protocol`, of rows that are such calls.
OPENAI: Final = "openai_responses"
#: The header with the call.
CALL_HEADER: Final = "openai_call"
#: The header of an answer that is not one: what leads to the response that the request continues. That one is continued
#: already, so the request begins a sequence of its own.
FORK_HEADER: Final = "openai_fork"
#: The header of an answer with a response that is to be made in the background.
RUN_HEADER: Final = "openai_run"
#: The event, for the server alone, with the id and the items of a response that is not kept, without those that the
#: server has sent (`ResponsesCall.history`).
ITEMS_EVENT: Final = "items"
#: What the ids of the sequences begin with that are responses and conversations.
SEQUENCE_PREFIX: Final = "openai-"


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """One call.

    Attributes:
        operation: Its name, such as "create_response".
        id: Of the response or the conversation that it is about, or that it makes.
        previous: The response that a new one continues.
        in_conversation: Whether a new response belongs to the conversation that the sequence is.
        item: The item of a conversation that it is about, or several with commas between; the new response's id.
        limit, after, order: Which part of a list it asks for.
        is_new: Whether the sequence begins with this call.
        starting_after: The events that it asks for have greater numbers.
        generates: Whether the model answers; else the response has no output, and keeps what it was given.
        returns_items: Whether the events of a response that is not kept end with `ITEMS_EVENT`.
        history: How many bytes of items that lead to it the body has before the request; 0: the sequence has them.
    """

    operation: str
    id: str
    previous: str | None = None
    in_conversation: bool = False
    item: str = ""
    limit: int = 20
    after: str = ""
    order: str = "desc"
    is_new: bool = False
    history: int = 0
    starting_after: int = -1
    generates: bool = True
    returns_items: bool = False

    def encoded(self) -> str:
        """Return the value of the header."""
        return json.dumps(asdict(self))

    @classmethod
    def decoded(cls, header: str) -> "ResponsesCall":
        """Return the call that a header names."""
        return cls(**json.loads(header))
