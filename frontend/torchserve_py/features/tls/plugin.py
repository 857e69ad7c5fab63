"""The keys and certificates of encrypted listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import Plugin

if TYPE_CHECKING:
    from torchserve_py.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.features.tls.tls_settings import TlsSettings

    return TlsSettings


PLUGIN = Plugin(name="tls", tls="torchserve_py.features.tls.tls", settings=_settings)
