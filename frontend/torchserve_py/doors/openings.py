"""What a server opens when it starts, tried before any model is loaded: key stores, addresses."""

import socket

from torchserve_py.doors.binding import check_free, http_addresses
from torchserve_py.doors.tls import TlsError, check_certificate
from torchserve_py.plugins import plugins
from torchserve_py.settings.table import Settings


async def problems_of_opening(settings: Settings) -> list[str]:
    """Open what the settings name, and close it again; return what cannot be opened and why."""
    problems = []
    addresses = http_addresses(settings)
    try:
        if any(address.is_tls for _, address in addresses):
            check_certificate(settings)
    except TlsError as error:
        problems.append(str(error))
    held: list[socket.socket] = []
    try:
        for names, address in addresses:
            try:
                held += await check_free(names, address)
            except OSError as error:
                problems.append(str(error))
        for plugin in plugins():
            problems += await plugin.problems_of_opening(settings, held)
    finally:
        for each in held:
            each.close()
    return list(dict.fromkeys(problems))  # HTTP and a feature may use the same file
