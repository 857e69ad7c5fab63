"""A lifecycle as a table: (state, event) -> state."""

from collections.abc import Hashable
from typing import NoReturn, TypeVar

State = TypeVar("State", bound=Hashable)
Event = TypeVar("Event", bound=Hashable)


class IllegalTransition(RuntimeError):
    """An event happened in a state in which it cannot happen: a defect of the caller, never of a client."""


class Transitions(dict[tuple[State, Event], State]):
    """`state = TABLE[state, event]`; an event that the table lacks raises IllegalTransition."""

    def __missing__(self, key: tuple[State, Event]) -> NoReturn:
        state, event = key
        possible = ", ".join(str(known) for before, known in self if before == state) or "nothing"
        raise IllegalTransition(f"{event} cannot happen in state {state}; what can: {possible}")
