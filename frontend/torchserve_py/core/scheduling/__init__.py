"""When a job runs: a pure state machine, events in with the time, effects out as values."""
