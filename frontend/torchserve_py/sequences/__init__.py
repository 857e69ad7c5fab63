"""The states of sequences: what counts their steps, and the stores that keep them."""
