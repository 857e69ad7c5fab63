"""The file with the keys of a server, `keys_file`."""

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final

from torchserve_py.base.settings.schemas.schema import ClosedSchema, key, read
from torchserve_py.base.settings.schemas.values import NAME, POSITIVE, TEXTS, Expected, Listed, Nested, choice, integer
from torchserve_py.base.settings.schemas.yaml_mapping import UnreadableYaml, read_yaml_mapping
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.ops.keys.keys_settings import HASH, KEY
from torchserve_py.plugin_api import PluginUnavailable

_TOKEN: Final = Expected("a text of letters, digits and . _ ~ + / - =", lambda value: bool(KEY.fullmatch(value)))
_HASH: Final = Expected("64 hexadecimal digits", lambda value: bool(HASH.fullmatch(value)))
_MOMENT: Final = Expected(
    "a date or a time, such as 2030-01-31 or 2030-01-31T12:00:00Z",
    lambda value: isinstance(value, date) or bool(datetime.fromisoformat(value)),
)


class KeysFileError(PluginUnavailable):
    """The file cannot be used; the message says what is wrong, without any key."""


def digest_of(key: str) -> str:
    """Return the SHA-256 of a key, as hexadecimal digits in lower case."""
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


class LimitsEntry(ClosedSchema):
    """What a key may ask of the server."""

    requests_per_second: Annotated[float | None, POSITIVE] = key(
        None, "requests in a second; as many may come in one moment", "no limit"
    )
    requests_at_once: Annotated[int | None, integer(1)] = key(
        None, "requests that wait or run at the same time", "no limit"
    )
    tokens_per_second: Annotated[float | None, POSITIVE] = key(
        None, "tokens of answers in a second; as many may come in one moment", "no limit"
    )
    open_sequences: Annotated[int | None, integer(1)] = key(
        None, "sequences that are open on this server at the same time", "no limit"
    )


class KeyEntry(ClosedSchema):
    """One key."""

    name: Annotated[str, NAME] = key(None, "what messages call the key", otherwise="")
    text: Annotated[str | None, _TOKEN] = key("key", "the key, as clients send it", repr=False)
    sha256: Annotated[str | None, _HASH] = key(None, "the key's SHA-256, instead of `key`")
    scope: Annotated[TokenType, choice(*TokenType)] = key(
        None, "the API that the key opens", f"`{TokenType.inference}`", TokenType.inference
    )
    models: Annotated[list[str] | None, TEXTS] = key(None, "the models that a key for inference may use", "all models")
    expires: Annotated[datetime | date | str | None, _MOMENT] = key(
        None, "when the key stops working; UTC unless it says otherwise", "never"
    )

    limits: Annotated[LimitsEntry | None, Nested("a map with limits, such as requests_per_second")] = key(
        None, "what a key for inference may ask of all models together", "no limits"
    )

    weight: Annotated[float | None, POSITIVE] = key(
        None, "how many turns it has while a key with 1 has one, where requests of both wait", "1"
    )

    @property
    def digest(self) -> str:
        """The key's SHA-256, in lower case."""
        return digest_of(self.text or "") if self.sha256 is None else self.sha256.lower()

    @property
    def expires_at(self) -> datetime | None:
        """When the key stops working."""
        given = datetime.fromisoformat(self.expires) if isinstance(self.expires, str) else self.expires
        if given is None:
            return None
        moment = given if isinstance(given, datetime) else datetime.combine(given, time.min)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_Entry = Annotated[KeyEntry, Nested("a map with a key, or its sha256")]


class KeysFile(ClosedSchema):
    """The file."""

    keys: Annotated[tuple[_Entry, ...], Listed("a list of keys")] = key(None, "the keys", otherwise=())


def read_keys(path: Path) -> Sequence[KeyEntry]:
    """Return the keys in the file.

    Raises KeysFileError: it cannot be read, or something in it is wrong; the message has none of the keys.
    """
    try:
        mapping = read_yaml_mapping(path)
        content, problems = read(KeysFile, mapping.values)
        found = [*map(_without_key, problems, problems.values()), *_contradictions(content)]
        if not (found or content.keys):
            found.append("it has no keys; write a list of them under 'keys:'")
    except OSError as error:
        found = [error.strerror or str(error)]
    except UnreadableYaml as error:
        found = [str(error)]
    if found:
        raise KeysFileError(f"keys_file {path}: {'; '.join(found)}")
    return content.keys


def _without_key(place: str, problem: str) -> str:
    """Return a problem, without the value where that may be a key."""
    if place.endswith((".key", ".sha256", "]")) or place == "keys":
        return f"{place} must be {problem.partition('it must be ')[2] or 'a key'}"
    return problem


def _contradictions(content: KeysFile) -> Iterator[str]:
    first: dict[tuple[TokenType, str], int] = {}
    for number, entry in enumerate(content.keys):
        if (entry.text is None) == (entry.sha256 is None):
            yield f"keys[{number}] must have either key or sha256"
        elif (same := first.setdefault((entry.scope, entry.digest), number)) != number:
            yield f"keys[{number}] is the key of keys[{same}], for the same API; keep one entry"
        if entry.models is not None and entry.scope is not TokenType.inference:
            yield f"keys[{number}].models is only for scope: {TokenType.inference}"
        for name in ("limits", "weight"):
            if getattr(entry, name) is not None and entry.scope is not TokenType.inference:
                yield f"keys[{number}].{name} is only for scope: {TokenType.inference}"
