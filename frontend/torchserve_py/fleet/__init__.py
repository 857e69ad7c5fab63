"""Models, workers and servers as a whole: how many there are, where, and what they share."""
