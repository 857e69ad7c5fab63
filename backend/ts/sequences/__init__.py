"""The states of sequences: steps and stores."""
