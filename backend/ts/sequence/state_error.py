"""The error of a state that cannot be written or read."""


class StateError(ValueError):
    """A state that cannot be written as bytes, or bytes that cannot be read as a state."""
