"""What a client asks of the time of a step: its deadline, what becomes of a late one, and the period of its session."""

import math
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Timing:
    """The time of one step. Its owner sets the first group of fields, the scheduler keeps the second."""

    within: float  # how many seconds after its arrival it is due
    waited: float = 0.0  # how many seconds after its arrival it is submitted
    drops: bool = False  # whether a step that cannot be in time is dropped, instead of being answered late
    period: float | None = None  # its session sends a step in this many seconds, and asks for a guarantee
    degrades: bool = False  # whether the session goes on without a guarantee where there is no room for one

    due: float = math.inf  # its deadline (monotonic seconds), once it was submitted
    is_guaranteed: bool = False  # whether it belongs to a session with a guarantee, and comes no earlier than agreed
    is_degraded: bool = False  # whether its session has asked for a guarantee and has none
    is_late: bool = False  # whether it waited until it could not be in time, and is to be answered late
    limit: float = math.inf  # when its client stops waiting (monotonic seconds), whatever its deadline
