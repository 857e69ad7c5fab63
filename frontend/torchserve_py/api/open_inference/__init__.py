"""The Open Inference Protocol (V2) over REST, and what its gRPC door shares with it.

`door` finds what a path means; `descriptions`, `repository`, `sequences` and `statistics` are of use to both protocols.
"""

from torchserve_py.api.open_inference.door import OpenInferenceDoor

__all__ = ["OpenInferenceDoor"]
