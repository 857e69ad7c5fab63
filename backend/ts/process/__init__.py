"""The worker process: how it starts, loads a model, runs jobs and ends."""
