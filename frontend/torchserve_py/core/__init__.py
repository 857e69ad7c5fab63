"""Models and their workers: which request runs where and when."""
