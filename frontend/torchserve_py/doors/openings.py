"""What a server opens when it starts, tried before any model is loaded: key stores, key files, addresses."""

import os
import socket
from pathlib import Path

from torchserve_py.doors.binding import check_free, http_addresses
from torchserve_py.doors.tls import TlsError, check_certificate
from torchserve_py.doors.token_authorization import KEY_FILE
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
    key_file = Path(KEY_FILE).absolute()
    place = key_file if key_file.exists() else key_file.parent
    if not settings.disable_token_authorization and not os.access(place, os.W_OK):
        problems.append(f"the file of the keys, {key_file}, cannot be written; start the server in another folder")
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
