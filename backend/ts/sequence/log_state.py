"""A state that is as large as its log: a list of what has been said, for example."""


class LogState:
    """A state that never changes in place, and of which the log has everything.

    So it is not copied before a step, and a checkpoint would save nothing: the state is written whole only if a step
    has set it and has appended nothing.
    """

    __slots__ = ()
