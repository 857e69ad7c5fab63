"""The settings of the gRPC ports."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from torchserve_py.base.settings.schemas.values import MAX_LONG, choice, integer
from torchserve_py.base.settings.table import (
    Effective,
    Host,
    Milliseconds,
    MillisecondsFrom0,
    Number,
    Port,
    SettingsSection,
    Switch,
    setting,
)
from torchserve_py.ops.tls.needed_files import PEM_FILES, missing_files


class GrpcSettings(SettingsSection):
    """The settings of the gRPC ports."""

    grpc_inference_address: Host = setting("127.0.0.1", "where the gRPC inference API listens")
    grpc_management_address: Host = setting("127.0.0.1", "where the gRPC management API listens")
    grpc_inference_port: Port = setting(7070, "port of the gRPC inference API")
    grpc_management_port: Port = setting(7071, "port of the gRPC management API")
    enable_grpc_ssl: Switch = setting(False, "use TLS for gRPC")

    grpc_stream_envelope: Annotated[Literal["auto", "triton", "mlserver"], choice("auto", "triton", "mlserver")] = (
        setting("auto", "whose messages `ModelStreamInfer` sends; `auto`: as its first request tells")
    )
    grpc_inference_max_connection_age_ms: Milliseconds = setting(
        None, "age at which a gRPC inference connection is closed", "unlimited"
    )
    grpc_management_max_connection_age_ms: Milliseconds = setting(
        None, "age at which a gRPC management connection is closed", "unlimited"
    )
    grpc_inference_max_connection_age_grace_ms: MillisecondsFrom0 = setting(
        None, "how long running calls of an inference connection may continue after its maximum age", "unlimited"
    )
    grpc_management_max_connection_age_grace_ms: MillisecondsFrom0 = setting(
        None, "how long running calls of a management connection may continue after its maximum age", "unlimited"
    )
    grpc_max_message_length: Annotated[int | None, integer(1, MAX_LONG, "bytes")] = setting(
        None, "the largest gRPC message with tensors", "`max_request_size` if set, else unlimited"
    )
    grpc_max_concurrent_streams: Number = setting(
        1000, "open calls of one gRPC connection; further ones wait at the client"
    )

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterator[str]:
        """Yield a line for each file that TLS needs and that is not there."""
        if "enable_grpc_ssl" in effective and effective["enable_grpc_ssl"].value:
            yield from missing_files(effective, PEM_FILES, f"enable_grpc_ssl needs {' and '.join(PEM_FILES)}")
