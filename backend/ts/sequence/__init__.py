"""State per sequence for handlers: `SequenceCache`, bounded in memory and, with a store beneath it, durable."""

from ts.sequence.sequence_cache import SequenceCache
from ts.sequence.state_error import StateError

__all__ = ["SequenceCache", "StateError"]
