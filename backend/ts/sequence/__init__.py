"""State per sequence for handlers: `SequenceCache`, bounded in memory and, with a store beneath it, durable."""

from ts.sequence.encoding import StateError
from ts.sequence.sequence_cache import SequenceCache

__all__ = ["SequenceCache", "StateError"]
