"""The keys that a server is given, in its settings and in a file that may change while it runs.

The server keeps the SHA-256 of each key, by which it finds the key of a request: how long that takes tells nothing of
the keys. Keys are meant to be random; for texts that people choose, a fast hash is no protection.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from torchserve_py.endpoints.credentials import Credential, HeldCredentials, SentKey, forbidden, unauthorized
from torchserve_py.endpoints.failures import Failure, unsupported
from torchserve_py.endpoints.token_authorization import TokenType
from torchserve_py.ops.keys.key_account import KeyAccount
from torchserve_py.ops.keys.keys_file import KeysFileError, LimitsEntry, digest_of, read_keys
from torchserve_py.ops.keys.keys_settings import GivenKey, KeysSettings

logger = logging.getLogger(__name__)

_HOW: Final = "Send the header 'Authorization: Bearer KEY'."
_utc_now: Final = partial(datetime.now, UTC)


class _Key(NamedTuple):
    """What a key is for; ``models`` is None for all, ``expires_at`` for never."""

    name: str
    scope: TokenType
    models: frozenset[str] | None = None
    expires_at: datetime | None = None
    account: KeyAccount | None = None


#: The API that a key is for, and the SHA-256 of the key; one key may open both APIs.
_Id = tuple[TokenType, str]
_Keys = Mapping[_Id, _Key]
#: By what it is seen that a file has changed: its number, its time and its size.
_Stamp = tuple[int, int, int]


class GivenKeys:
    """The keys of a running server. Tests set the clock ``now``. Raises KeysFileError: the file cannot be used."""

    def __init__(self, settings: KeysSettings, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now
        self.held = HeldCredentials()
        self._path = settings.keys_file
        self._of_settings = {
            **_of_setting(TokenType.inference, settings.inference_keys),
            **_of_setting(TokenType.management, settings.management_keys),
        }
        self._stamp = self._look()
        self._keys: _Keys = {}
        self._keys = self._read()

    def admit(self, kind: TokenType, key: SentKey, model: str | None = None) -> Credential:
        """Return what the key of a request to an API, and to a model if it names one, allows.

        Raises EndpointError: there is no key, or it is unknown or has expired (401); it is for something else (403).
        """
        if not key.text:
            raise unauthorized(f"This server needs a key. {_HOW}", given=key.given)
        credential = _GivenCredential(self, (kind, digest_of(key.text)))
        credential.check(model)
        return credential

    def good(self, id_: _Id, model: str | None) -> _Key:
        """Return what a key is for now. Raises as `admit` does."""
        key = self._keys.get(id_)
        if key is None:
            kind, digest = id_
            if any(known == digest for _, known in self._keys):
                raise forbidden(f"This key does not open the {kind} API.")
            raise unauthorized(f"The key is not one of this server's. {_HOW}", given=True)
        if key.expires_at is not None and self._now() >= key.expires_at:
            raise unauthorized(f"{_named(key)} expired at {key.expires_at.isoformat()}.", given=True)
        if model is not None and key.models is not None and model not in key.models:
            raise forbidden(f"{_named(key)} is not for the model {model!a}.")
        return key

    def rotate(self, kind: str, key: SentKey) -> None:
        """Refuse, by raising EndpointError: the operator replaces these keys."""
        raise unsupported("This server was given its keys. Replace the file of the setting keys_file to rotate them.")

    def close(self) -> None:
        """Keep everything: the file is the operator's."""

    def accounts(self) -> Iterator[KeyAccount]:
        """Yield the accounts of the keys for inference."""
        for key in self._keys.values():
            if key.account is not None:
                yield key.account

    @property
    def may_change(self) -> bool:
        """Whether there is a file whose changes count."""
        return self._path is not None

    def reload(self) -> None:
        """Read the file again if it has changed; a file that cannot be used is logged and changes nothing. Blocks."""
        if self._path is None or (stamp := self._look()) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = self._read()
        except KeysFileError as error:
            logger.error("The keys stay as they are: %s", error)
        else:
            logger.info("keys_file %s has changed: %d keys", self._path, len(self._keys))

    def _look(self) -> _Stamp | None:
        """Return the state of the file; None if it cannot be found."""
        if self._path is None:
            return None
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> _Keys:
        return self._of_settings if self._path is None else {**self._of_settings, **dict(self._of_file(self._path))}

    def _of_file(self, path: Path) -> Iterator[tuple[tuple[TokenType, str], _Key]]:
        for entry in read_keys(path):
            id_ = entry.scope, entry.digest
            models, account = None if entry.models is None else frozenset(entry.models), None
            if entry.scope is TokenType.inference:
                before = self._keys.get(id_)
                account = (before and before.account) or _account(entry.name, id_[1])  # what runs goes on to count
                account.change(entry.limits or LimitsEntry(), entry.weight or 1.0)
            yield id_, _Key(entry.name, entry.scope, models, entry.expires_at, account)


@dataclass(frozen=True, slots=True)
class _GivenCredential(Credential):
    """What a key allows by what is said of it now: the file may have changed since it was admitted."""

    keys: GivenKeys
    id: _Id

    def check(self, model: str | None = None) -> None:
        self.keys.good(self.id, model)

    def account(self, model: str) -> KeyAccount | None:
        return self.keys.good(self.id, model).account

    def hold(self, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        return self.keys.held.hold(self, model, end)


def _of_setting(scope: TokenType, keys: Iterable[GivenKey]) -> _Keys:
    found = {each.text.lower() if each.is_hash else digest_of(each.text): each.name for each in keys}
    of_inference = scope is TokenType.inference
    return {
        (scope, digest): _Key(name, scope, account=_account(name, digest) if of_inference else None)
        for digest, name in found.items()
    }


def _account(name: str, digest: str) -> KeyAccount:
    return KeyAccount(digest, name or f"key {digest[:8]}")


def _named(key: _Key) -> str:
    return f"The key {key.name!a}" if key.name else "This key"
