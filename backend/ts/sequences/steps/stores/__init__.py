"""What a store of states is, and what all stores share; `ts.sequences.sqlite` and `ts.sequences.redis` are stores."""
