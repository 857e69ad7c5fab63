"""Which keys a server has: those that it is given, else those that it makes."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final

from torchserve_py.base.settings.table import Settings
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.endpoints.token_authorization import KEY_FILE, Authorization
from torchserve_py.ops.keys.generated_keys import GeneratedKeys
from torchserve_py.ops.keys.given_keys import GivenKeys
from torchserve_py.ops.keys.keys_file import KeysFileError, read_keys
from torchserve_py.ops.keys.keys_settings import KeysSettings
from torchserve_py.ops.keys.usage_files import UsageFolderError, held_folder

#: How often the file of the keys is looked at, and whether what is open may stay so (seconds); each of these takes
#: less than the second that the documents promise.
_INTERVAL: Final = 0.5

logger = logging.getLogger(__name__)


def open_keys(settings: Settings, key_file: Path) -> Authorization:
    """Return the keys of a server; those that it makes are written to ``key_file``.

    Raises OSError: it cannot be written; KeysFileError: the file of the given keys cannot be used.
    """
    given = settings.of(KeysSettings)
    if given.has_keys:
        return GivenKeys(given)
    keys = GeneratedKeys(key_file, given.token_expiration_min)
    logger.info("Requests need a key of %s; torchserve-py key prints the one for inference", key_file)
    return keys


def problem_of(settings: Settings) -> str | None:
    """Return why the server cannot have its keys; None if it can. Blocks."""
    given = settings.of(KeysSettings)
    if given.keys_file is not None:
        try:
            read_keys(given.keys_file)
        except KeysFileError as error:
            return str(error)
    if given.usage_folder is not None:
        try:
            with held_folder(given.usage_folder):
                pass
        except UsageFolderError as error:
            return str(error)
    if given.has_keys:
        return None
    key_file = Path(KEY_FILE).absolute()
    place = key_file if key_file.exists() else key_file.parent
    if os.access(place, os.W_OK):
        return None
    return (
        f"the file of the keys, {key_file}, cannot be written; start the server in another folder, or give it keys by"
        " the setting inference_keys or keys_file"
    )


async def follow_keys(context: EndpointContext) -> None:
    """Read the file of the given keys whenever it changes, and end what keys have opened that are good no more."""
    keys = context.tokens
    if isinstance(keys, GivenKeys) and keys.may_change:
        context.on_reload.append(keys.reload)
    while keys is not None:
        await asyncio.sleep(_INTERVAL)
        if isinstance(keys, GivenKeys) and keys.may_change:
            await asyncio.to_thread(keys.reload)
        keys.held.look()
