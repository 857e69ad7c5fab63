"""The Open Inference Protocol (V2) over REST, and what its gRPC endpoint shares with it.

`open_inference_endpoints` has the routes; REST and gRPC both use `descriptions` and `repository`.
"""
