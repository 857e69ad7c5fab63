"""A benchmark of stateful serving: sessions that keep a period, go away and come back, while processes are killed."""
