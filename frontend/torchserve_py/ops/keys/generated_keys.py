"""TorchServe's keys for the inference and the management API, which the server makes if nobody gives it others.

Three random keys are written to a file that only the server's user can read. The *inference* and the *management* key
expire. The *API* key does not expire, and only serves to replace one of the other two.
"""

import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from torchserve_py.base.atomic_file import write_atomically
from torchserve_py.endpoints.credentials import Credential, HeldCredentials, SentKey, unauthorized
from torchserve_py.endpoints.failures import INVALID_KEY, Failure
from torchserve_py.endpoints.token_authorization import TokenType
from ts.protocol.regular_files import read_regular

_KEY_BYTES: Final = 6
_MOST_BYTES: Final = 100_000
_REASON: Final = "failed. Token either incorrect, expired, or not provided correctly"
_WRONG: Final = f"Token Authorization {_REASON}"
#: The end of time, as far as a key file can name it (seconds since 1970).
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC).timestamp()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Key(Credential):
    """A key, and what it allows while it is the one of its API and has not expired (seconds since 1970)."""

    keys: "GeneratedKeys"
    kind: TokenType
    text: str
    expires_at: float

    def check(self, model: str | None = None) -> None:
        self.keys.check(self)

    def account(self, model: str) -> None:
        self.keys.check(self)

    def hold(self, model: str | None, end: Callable[[Failure], None]) -> Callable[[], None]:
        return self.keys.held.hold(self, None, end)


class GeneratedKeys:
    """The keys of a running server; those for inference and management live ``minutes``. Tests set the clock ``now``.

    Raises OSError: the key file cannot be written.
    """

    def __init__(self, path: Path, minutes: float, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._minutes = minutes
        self._now = now
        self.held = HeldCredentials()
        self._api_key = secrets.token_urlsafe(_KEY_BYTES)
        self._keys = {kind: self._new_key(kind) for kind in TokenType}
        self._write()

    def admit(self, kind: TokenType, key: SentKey, model: str | None = None) -> Credential:
        """Return what a key allows: these are for all models, and have no limits. Raises EndpointError: it is wrong."""
        found = self._keys[kind]
        if not _is_same(key, found.text):
            raise unauthorized(_WRONG, INVALID_KEY, given=key.given)
        self.check(found)
        return found

    def check(self, key: _Key) -> None:
        """Check that an admitted key is still the one of its API. Raises EndpointError: it is not, or has expired."""
        if self._keys[key.kind] is not key or self._now() >= key.expires_at:
            raise unauthorized(_WRONG, INVALID_KEY, given=True)

    def accounts(self) -> tuple[()]:
        """Return nothing: its keys have no accounts."""
        return ()

    def rotate(self, kind: str, key: SentKey) -> None:
        """Replace a key by a new one, which the key file then holds; the old key is good no more.

        Raises EndpointError: the kind is not one of `TokenType`, or ``key`` is not the API key.
        """
        if kind not in TokenType.__members__ or not _is_same(key, self._api_key):
            raise unauthorized(f"Token Authentication {_REASON}", INVALID_KEY, given=key.given)
        self._keys[TokenType(kind)] = self._new_key(TokenType(kind))
        self._write()

    def close(self) -> None:
        """Delete the key file; its keys are of no use once the server has ended."""
        self._path.unlink(missing_ok=True)

    def _new_key(self, kind: TokenType) -> _Key:
        expires_at = min(self._now() + self._minutes * 60, _LATEST)
        return _Key(self, kind, secrets.token_urlsafe(_KEY_BYTES), expires_at)

    def _write(self) -> None:
        """Replace the file; only the server's user can read it."""
        content = {
            kind: {"key": key.text, "expiration time": _shown(key.expires_at)} for kind, key in self._keys.items()
        }
        write_atomically(self._path, json.dumps({**content, "API": {"key": self._api_key}}, indent=2) + "\n")


def read_key(kind: TokenType, path: Path) -> str:
    """Return a key from the key file. Raises OSError: the file cannot be read."""
    return str(json.loads(read_regular(path, _MOST_BYTES))[kind]["key"])


def _shown(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")


def _is_same(sent: SentKey, key: str) -> bool:
    return hmac.compare_digest(sent.text.encode("utf-8", "surrogateescape"), key.encode())
