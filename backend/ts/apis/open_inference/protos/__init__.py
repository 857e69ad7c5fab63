"""The messages of an inference request and response over gRPC, as `scripts/generate-stubs` makes them of `infer.proto`.

The worker decodes and encodes them; the frontend's endpoint has the service. No grpc is imported here.
"""
