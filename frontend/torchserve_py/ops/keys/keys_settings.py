"""The settings with the keys of a server."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from torchserve_py.base.settings import value_kinds as kinds
from torchserve_py.base.settings.schemas.values import POSITIVE, Parsed
from torchserve_py.base.settings.table import Effective, SettingsSection, Source, setting

#: RFC 6750: what a bearer token may be; in addition no "=" within, so that a name can precede it.
KEY: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
HASH: Final = re.compile(r"[0-9a-fA-F]{64}")
_HASHED: Final = "sha256:"
_SEPARATOR: Final = ":"


class GivenKey(NamedTuple):
    """A key of a setting, its name if it has one, and whether it is the key's SHA-256 instead."""

    name: str
    text: str
    is_hash: bool


def _keys(text: str, _: Path) -> tuple[GivenKey, ...]:
    return tuple(_key(each.strip()) for each in text.split(",") if each.strip())


def _key(text: str) -> GivenKey:
    name, separator, key = text.partition(_SEPARATOR)
    if not separator or f"{name}:" == _HASHED:
        name, key = "", text
    is_hash = key.startswith(_HASHED)
    key = key.removeprefix(_HASHED)
    if not (HASH if is_hash else KEY).fullmatch(key):
        of_name = f" of {name}" if name else ""
        raise ValueError(
            f"the SHA-256{of_name} is not 64 hexadecimal digits"
            if is_hash
            else f"the key{of_name} has other characters than letters, digits and . _ ~ + / - ="
        )
    return GivenKey(name, key, is_hash)


_KEYS: Final = Parsed("KEY, NAME:KEY or NAME:sha256:HASH, several with commas between them", _keys)


def _is_given(name: str, effective: Mapping[str, Effective]) -> bool:
    """Return whether a setting is given; those whose value is wrong are absent from ``effective``."""
    return name not in effective or bool(effective[name].value)


class KeysSettings(SettingsSection):
    """The keys that a server is given; without any it makes its own."""

    token_expiration_min: Annotated[float, POSITIVE, Source(env="TS_TOKEN_EXPIRATION_TIME_MIN")] = setting(
        60.0, "minutes that a token is valid"
    )
    inference_keys: Annotated[tuple[GivenKey, ...], _KEYS, Source(env_always=True)] = setting(
        (), "[keys](keys.md) for the inference API", "the server makes one", repr=False
    )
    management_keys: Annotated[tuple[GivenKey, ...], _KEYS, Source(env_always=True)] = setting(
        (), "keys for the management API and the console", "the server makes one", repr=False
    )
    keys_file: Annotated[Path | None, kinds.PATH, Source(env_always=True)] = setting(
        None, "YAML or JSON file with [keys](keys.md), their scopes, models and expiry"
    )
    usage_folder: Annotated[Path | None, kinds.PATH] = setting(
        None, "folder of this server for [daily files of usage](keys.md#usage)", "none are written"
    )

    @classmethod
    def contradictions(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a line for keys that nobody would be asked for, and for a file that is not there."""
        given = [name for name in KEY_SETTINGS if name in effective and effective[name].value]
        off = effective.get("disable_token_authorization")
        if given and off is not None and off.value:
            yield (
                f"Invalid configuration: {effective[given[0]].origin} gives keys, but {off.origin} switches token"
                " authorization off; remove one of the two"
            )

        usage = effective.get("usage_folder")
        if usage and usage.value and not any(_is_given(name, effective) for name in KEY_SETTINGS):
            origin = usage.origin
            yield f"Invalid configuration: {origin} is for servers that are given keys; set keys_file or inference_keys"

    @classmethod
    def doubts(cls, effective: Mapping[str, Effective]) -> Iterable[str]:
        """Yield a warning where keys are given that leave the inference API closed."""
        keys = effective.get("management_keys")
        if keys and keys.value and not any(_is_given(name, effective) for name in ("inference_keys", "keys_file")):
            yield f"{keys.origin}: without inference_keys or keys_file no key opens the inference API"

    @property
    def has_keys(self) -> bool:
        """Whether the server is given keys, and so makes none."""
        return bool(self.inference_keys or self.management_keys or self.keys_file)


KEY_SETTINGS: Final = ("inference_keys", "management_keys", "keys_file")
