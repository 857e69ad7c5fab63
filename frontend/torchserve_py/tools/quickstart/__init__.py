"""`torchserve-py serve`, `init` and `completion`: from a file to an answer in a minute."""
