"""Lets a model's store keep responses and conversations as logs, beside the states of the model's handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ts.apis.openai.conversation_state import ConversationState, is_entry
from ts.sequence.sequence_cache import Rebuild
from ts.sequence.state_error import StateError

if TYPE_CHECKING:
    from ts.protocol.messages import Load
    from ts.runtime.torchserve_handler import TorchServeHandler
    from ts.service import Service


def prepare(
    service: Service,
    handler: TorchServeHandler,
    load: Load,
    argument: Any,
    wait_for: Callable[[Awaitable[Any]], Any] | None = None,
) -> None:
    """Have the model's sequences keep them; see `ts.runtime.loader.prepare`."""
    cache = service.context.sequence_cache
    if cache is not None:
        cache.encoding.add(ConversationState, ConversationState.encoded, ConversationState.decoded)
        cache.rebuild = rebuild_beside(cache.rebuild)


def rebuild_beside(of_handler: Rebuild | None) -> Rebuild:
    """Return what makes states of logs: of conversations, and by the handler's own method of all others."""

    def rebuild(states: list[Any], entries: list[list[Any]]) -> list[Any]:
        logs = list(zip(states, entries, strict=True))
        made = [_rebuilt(state, appended) if _is_own(state, appended) else None for state, appended in logs]
        others = [place for place, state in enumerate(made) if state is None]
        if others:
            if of_handler is None:
                raise StateError("it was stored as a log, and the handler has no method rebuild(states, entries)")
            rebuilt = of_handler([states[place] for place in others], [entries[place] for place in others])
            if not isinstance(rebuilt, list) or len(rebuilt) != len(others):
                return rebuilt  # the caller refuses it
            for place, state in zip(others, rebuilt, strict=True):
                made[place] = state
        return made

    return rebuild


def _is_own(state: Any, entries: list[Any]) -> bool:
    return isinstance(state, ConversationState) or (state is None and bool(entries) and is_entry(entries[0]))


def _rebuilt(state: ConversationState | None, entries: list[Any]) -> ConversationState:
    made = state or ConversationState()
    for entry in entries:
        made = made.after(entry)
    return made
