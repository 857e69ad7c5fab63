"""TorchServe's keys for the inference and the management API, which the server makes if nobody gives it others.

Three random keys are written to a file that only the server's user can read. The *inference* and the *management* key
expire. The *API* key does not expire, and only serves to replace one of the other two.
"""

import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from torchserve_py.atomic_file import write_atomically
from torchserve_py.doors.credentials import Credential, HeldCredentials, SentKey, unauthorized
from torchserve_py.doors.failures import INVALID_KEY, Failure
from torchserve_py.doors.token_authorization import TokenType
from ts.protocol.regular_files import read_regular

_KEY_BYTES: Final = 6
_MOST_BYTES: Final = 100_000
_REASON: Final = "failed. Token either incorrect, expired, or not provided correctly"
_WRONG: Final = f"Token Authorization {_REASON}"
_utc_now: Final = partial(datetime.now, UTC)


class _Key(NamedTuple):
    text: str
    expires_at: datetime


class GeneratedKeys:
    """The keys of a running server; those for inference and management live ``minutes``. Tests set the clock ``now``.

    Raises OSError: the key file cannot be written.
    """

    def __init__(self, path: Path, minutes: float, now: Callable[[], datetime] = _utc_now) -> None:
        self._path = path
        self._minutes = minutes
        self._now = now
        self.held = HeldCredentials()
        self._api_key = secrets.token_urlsafe(_KEY_BYTES)
        self._keys = {kind: self._new_key() for kind in TokenType}
        self._write()

    def admit(self, kind: TokenType, key: SentKey, model: str | None = None) -> Credential:
        """Return what a key allows: these are for all models, and have no limits. Raises DoorError: it is wrong."""
        found = self._keys[kind]
        if not _is_same(key, found.text):
            raise unauthorized(_WRONG, INVALID_KEY, given=key.given)
        credential = _GeneratedCredential(self, kind, found.text)
        credential.check()
        return credential

    def check(self, kind: TokenType, text: str) -> None:
        """Check that a key which was admitted is still the one of its API. Raises DoorError: it is not, or expired."""
        key = self._keys[kind]
        if key.text != text or self._now() >= key.expires_at:
            raise unauthorized(_WRONG, INVALID_KEY, given=True)

    def rotate(self, kind: str, key: SentKey) -> None:
        """Replace a key by a new one, which the key file then holds; the old key is good no more.

        Raises DoorError: the kind is not one of `TokenType`, or ``key`` is not the API key.
        """
        if kind not in TokenType.__members__ or not _is_same(key, self._api_key):
            raise unauthorized(f"Token Authentication {_REASON}", INVALID_KEY, given=key.given)
        self._keys[TokenType(kind)] = self._new_key()
        self._write()

    def close(self) -> None:
        """Delete the key file; its keys are of no use once the server has ended."""
        self._path.unlink(missing_ok=True)

    def _new_key(self) -> _Key:
        try:
            expires_at = self._now() + timedelta(minutes=self._minutes)
        except OverflowError:
            expires_at = datetime.max.replace(tzinfo=UTC)
        return _Key(secrets.token_urlsafe(_KEY_BYTES), expires_at)

    def _write(self) -> None:
        """Replace the file; only the server's user can read it."""
        content = {
            kind: {"key": key.text, "expiration time": key.expires_at.isoformat().replace("+00:00", "Z")}
            for kind, key in self._keys.items()
        }
        write_atomically(self._path, json.dumps({**content, "API": {"key": self._api_key}}, indent=2) + "\n")


def read_key(kind: TokenType, path: Path) -> str:
    """Return a key from the key file. Raises OSError: the file cannot be read."""
    return str(json.loads(read_regular(path, _MOST_BYTES))[kind]["key"])


@dataclass(frozen=True, slots=True)
class _GeneratedCredential(Credential):
    keys: GeneratedKeys
    kind: TokenType
    text: str

    def check(self, model: str | None = None) -> None:
        self.keys.check(self.kind, self.text)

    def account(self, model: str) -> None:
        self.keys.check(self.kind, self.text)

    def hold(self, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        return self.keys.held.hold(self, None, end)


def _is_same(sent: SentKey, key: str) -> bool:
    return hmac.compare_digest(sent.text.encode("utf-8", "surrogateescape"), key.encode())
