"""Where the states of sequences are kept beneath a `ts.sequence.SequenceCache`: a file, or Redis."""
