"""How much is remembered of one sequence: limits that the frontend and the stores share."""

from typing import Final

#: The most steps of a sequence whose answers are kept, so that they can be sent again, besides the first.
MOST_KEPT_ANSWERS: Final = 64
#: How many tokens of earlier sequences with the same id are remembered, the latest ones: these sequences are over.
#: The scheduler, which imports nothing of this package, has the same limit.
MOST_EARLIER_TOKENS: Final = 1_000
