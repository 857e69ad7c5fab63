"""The protocol of requests that are two answers to compare, see `ts.versions.traffic.compared_answers`."""

from typing import Final

ANSWERS: Final = "compared_answers"
