"""What a server opens when it starts, tried before any model is loaded: key stores, addresses."""

import asyncio
import socket

from torchserve_py.apis.grpc import grpc_ports
from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.binding import check_free, http_addresses
from torchserve_py.ops.keys.server_keys import problem_of as problem_of_keys
from torchserve_py.ops.tls.tls import check_certificate


async def problems_of_opening(settings: Settings) -> list[str]:
    """Open what the settings name, and close it again; return what cannot be opened and why."""
    problems = []
    addresses = http_addresses(settings)
    if any(address.is_tls for _, address in addresses):
        try:
            check_certificate(settings)
        except OSError as error:
            problems.append(str(error))
    held: list[socket.socket] = []
    try:
        for names, address in addresses:
            try:
                held += await check_free(names, address)
            except OSError as error:
                problems.append(str(error))
        if not settings.disable_token_authorization and (problem := await asyncio.to_thread(problem_of_keys, settings)):
            problems.append(problem)
        problems += await grpc_ports.problems_of_opening(settings, held)
    finally:
        for each in held:
            each.close()
    return list(dict.fromkeys(problems))  # HTTP and gRPC may use the same file
