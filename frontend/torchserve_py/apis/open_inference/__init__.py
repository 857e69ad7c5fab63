"""The Open Inference Protocol (V2) over REST, and what its gRPC door shares with it.

`open_inference_door` has the routes; REST and gRPC both use `descriptions` and `repository`.
"""
