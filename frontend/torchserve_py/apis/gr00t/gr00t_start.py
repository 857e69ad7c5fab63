"""Opens the port for GR00T's clients, if it is set; only then its package is imported."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchserve_py.apis.gr00t.gr00t_settings import Gr00tSettings
from torchserve_py.plugin_api import Listener, PluginUnavailable

if TYPE_CHECKING:
    from torchserve_py.base.settings.addresses import Address
    from torchserve_py.endpoints.routing import EndpointContext


class _Closed:
    """The listener of a server whose port is not set."""

    addresses: Mapping[str, Address] = MappingProxyType({})

    async def close(self) -> None:
        """There is nothing to close."""


async def start_gr00t(context: EndpointContext) -> Listener:
    """Open the port, if it is set.

    Raises ListenError: the address cannot be used; PluginUnavailable: the package for ZeroMQ is missing.
    """
    if context.settings.of(Gr00tSettings).gr00t_port is None:
        return _Closed()
    try:
        from torchserve_py.apis.gr00t.gr00t_listener import open_gr00t
    except ImportError as error:
        message = f"gr00t_port needs the package pyzmq: pip install 'torchserve-py[gr00t]' ({error})"
        raise PluginUnavailable(message) from error
    return await open_gr00t(context)
