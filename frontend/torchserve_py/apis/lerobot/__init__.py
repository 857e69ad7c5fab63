"""Policies of robots, as LeRobot's client calls them: observations and chunks of actions over gRPC, without pickles."""
