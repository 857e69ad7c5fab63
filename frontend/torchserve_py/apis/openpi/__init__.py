"""Policies of robots, as clients of openpi call them: episodes over WebSockets."""
