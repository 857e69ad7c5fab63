"""Where the gRPC ports listen, with which TLS, and whether they can."""

import os
import socket
import ssl
from collections.abc import Mapping

from torchserve_py.apis.grpc.grpc_settings import GrpcSettings
from torchserve_py.base.settings.addresses import in_url
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.binding import ListenError
from torchserve_py.net.acceptor import listening_sockets
from torchserve_py.ops.tls.tls import TlsError, read_files
from torchserve_py.ops.tls.tls_settings import TlsSettings


def places(settings: Settings) -> Mapping[str, tuple[str, int]]:
    """Return the host and the port of each API, by the setting of the port."""
    own = settings.of(GrpcSettings)
    return {
        "grpc_inference_port": (own.grpc_inference_address, own.grpc_inference_port),
        "grpc_management_port": (own.grpc_management_address, own.grpc_management_port),
    }


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of the ports; None if they do without. Raises TlsError: a file is not set or unusable."""
    if not settings.of(GrpcSettings).enable_grpc_ssl:
        return None
    files = settings.of(TlsSettings)
    if files.private_key_file is None or files.certificate_file is None:
        raise TlsError("enable_grpc_ssl is true: private_key_file and certificate_file must be set, to files in PEM")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    read_files(settings).load(context)
    return context


def listen_error(setting: str, host: str, port: int, error: OSError) -> ListenError:
    """Return the error of a port that cannot be used."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return ListenError(
        f"{setting}: cannot listen at {in_url(host)}:{port}: {reason}; stop what uses the address (another server?)"
        " or choose another one"
    )


async def problems_of_opening(settings: Settings, held: list[socket.socket]) -> list[str]:
    """Open what the settings name, and add it to ``held``; return what cannot be opened and why."""
    problems = []
    try:
        tls_context(settings)
    except TlsError as error:
        problems.append(str(error))
    for setting, (host, port) in places(settings).items():
        try:
            held += await listening_sockets(host, port, 1)
        except OSError as error:
            problems.append(str(listen_error(setting, host, port, error)))
    return problems
