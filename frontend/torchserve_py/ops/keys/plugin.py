"""Keys: who may use the server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from torchserve_py.plugin_api import BackgroundOffer, Plugin, SchemaOffer

if TYPE_CHECKING:
    from torchserve_py.base.settings.table import Settings, SettingsSection
    from torchserve_py.endpoints.token_authorization import Authorization


def _authorization(settings: Settings) -> Authorization:
    from torchserve_py.endpoints.token_authorization import KEY_FILE
    from torchserve_py.ops.keys.server_keys import open_keys

    return open_keys(settings, Path(KEY_FILE).absolute())


def _background() -> Iterable[BackgroundOffer]:
    from torchserve_py.ops.keys.server_keys import follow_keys
    from torchserve_py.ops.keys.usage_report import report_usage

    return [
        BackgroundOffer("following changes of keys", follow_keys),
        BackgroundOffer("reporting the usage of keys", report_usage),
    ]


def _settings() -> type[SettingsSection]:
    from torchserve_py.ops.keys.keys_settings import KeysSettings

    return KeysSettings


def _schema() -> SchemaOffer:
    from torchserve_py.ops.keys.keys_file import KeysFile

    return SchemaOffer("keys_file", KeysFile)


PLUGIN = Plugin(
    name="keys",
    authorization=_authorization,
    background=_background,
    commands={"key": "torchserve_py.ops.keys.key_command"},
    schemas={"keys": _schema},
    settings=_settings,
)
