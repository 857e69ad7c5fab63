"""What a server opens when it starts, tried before any model is loaded: key stores, addresses."""

import importlib
import socket

from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.binding import check_free, http_addresses
from torchserve_py.plugins import module_of, plugins


async def problems_of_opening(settings: Settings) -> list[str]:
    """Open what the settings name, and close it again; return what cannot be opened and why."""
    problems = []
    addresses = http_addresses(settings)
    if encrypted := [names for names, address in addresses if address.is_tls]:
        try:
            if not module_of("tls"):
                raise OSError(f"{encrypted[0][0]} is https, but nothing in this installation speaks TLS; use http")
            importlib.import_module(module_of("tls")).check_certificate(settings)
        except OSError as error:
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
