"""The Open Inference Protocol (V2) over REST, and what its gRPC door shares with it.

`door` finds what a path means; `descriptions`, `repository` and `statistics` are of use to both protocols.
"""
