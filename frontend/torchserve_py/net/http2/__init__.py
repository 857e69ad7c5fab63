"""A gRPC server on asyncio: HTTP/2 frames, flow control and gRPC's messages.

It exists because it is many times cheaper per message than grpc.aio: what is ready in one turn of the event loop
leaves in one write, header blocks that repeat are decoded once, and no thread is involved. Header compression is that
of the package hpack. The rules are those of RFC 9113 and of gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).

`grpc_server` accepts connections; `http2_connection` is one of them, `call` one stream and its handler.
"""
