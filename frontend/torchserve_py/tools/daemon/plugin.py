"""Servers in the background: started, found again by a pid file, and stopped."""

from torchserve_py.plugin_api import Plugin


def _ended() -> None:
    from torchserve_py.tools.daemon.server_launcher import forget_server

    forget_server()


PLUGIN = Plugin(name="daemon", server_launcher="torchserve_py.tools.daemon.server_launcher", ended=_ended)
