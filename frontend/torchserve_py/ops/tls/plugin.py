"""The keys and certificates of encrypted listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torchserve_py.base.settings.table import SettingsSection


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.tls.tls_settings import TlsSettings

    return TlsSettings


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.ops.tls.renewal import follow_certificate

    return [BackgroundOffer("following changes of the certificate", follow_certificate)]


PLUGIN = Plugin(name="tls", settings=_settings, background=_background)
