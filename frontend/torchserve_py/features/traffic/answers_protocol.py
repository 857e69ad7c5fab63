"""The protocol of requests that are two answers to compare, see `ts.features.traffic.compared_answers`."""

from typing import Final

ANSWERS: Final = "compared_answers"
