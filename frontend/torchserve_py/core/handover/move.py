"""The life of one move of a sequence from the worker that has its state, the giver, to another one, the taker.

ASKED ─ given ▶ OFFERED ─ taken ▶ MOVED
  │ refused        │ declined
  └────────────────┴─────────────▶ STAYED
ASKED, OFFERED ─ closed ▶ OVER

ASKED    the giver was asked for the state, which goes to the taker piece by piece
OFFERED  the taker was asked to have it
MOVED    the taker has it, and its steps run there; the giver is told to drop it
STAYED   the giver has it, and its steps run there
OVER     the sequence has ended, perhaps because the giver is lost

A state that counts is in one place, the giver until the move is MOVED. What the taker has of a move that comes to
another end is dropped before anything else is sent to it. Without its giver a sequence is over, whatever the taker has;
without its taker it stays.
"""

from enum import StrEnum
from typing import Final, Literal, TypeAlias

from torchserve_py.core.scheduling.transitions import Transitions


class MoveState(StrEnum):
    """Where a move is."""

    ASKED = "asked"
    OFFERED = "offered"
    MOVED = "moved"
    STAYED = "stayed"
    OVER = "over"


ASKED, OFFERED, MOVED, STAYED, OVER = MoveState

MoveEvent: TypeAlias = Literal["given", "refused", "taken", "declined", "closed"]
MOVE_TRANSITIONS: Final = Transitions[MoveState, MoveEvent](
    {
        (ASKED, "given"): OFFERED,
        (ASKED, "refused"): STAYED,
        (ASKED, "closed"): OVER,
        (OFFERED, "taken"): MOVED,
        (OFFERED, "declined"): STAYED,
        (OFFERED, "closed"): OVER,
    }
)
