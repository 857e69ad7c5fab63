"""State per sequence for handlers: `SequenceCache`, bounded in memory and, with a store beneath it, durable."""

from ts.sequence.cache import SequenceCache
from ts.sequence.encoding import StateError

__all__ = ["SequenceCache", "StateError"]
