"""The gRPC endpoints: TorchServe's inference and management services, health checking and reflection."""

import os

# gRPC's fork handlers are for processes that go on using it after a fork. This server only forks to start workers,
# and the handlers would log a line each time. gRPC reads the variable when it is imported; workers must not inherit it.
_VARIABLE = "GRPC_ENABLE_FORK_SUPPORT"
if _VARIABLE in os.environ:
    import grpc
else:
    os.environ[_VARIABLE] = "false"
    import grpc
    import grpc.aio  # noqa: F401

    del os.environ[_VARIABLE]
