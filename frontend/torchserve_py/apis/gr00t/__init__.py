"""Policies of robots, as GR00T's clients call them: requests in msgpack over ZeroMQ."""
