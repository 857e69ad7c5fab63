"""Lines of a journal that is encrypted: each is sealed with AES-256-GCM.

The first line of a file has a salt. The file's own key is derived from it and the operator's key (HKDF, SHA-256).
The nonce of a line is its number in the file, so a line that was changed, moved or taken out is noticed.
"""

import base64
import binascii
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson

KEY_BYTES: Final = 32
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_SALT: Final = "salt"
_NUMBER: Final = "n"
_SEALED: Final = "sealed"
_LONGEST_KEY_FILE: Final = 1000


class KeyUnusable(ValueError):
    """A file has no key of the right length, or the key cannot be used; the message says why."""


class SealBroken(ValueError):
    """A line cannot be opened: another key has sealed it, or it was changed or moved."""


def key_in(file: Path) -> bytes:
    """Return the key in a file. Raises KeyUnusable."""
    try:
        with file.open("rb") as opened:
            text = opened.read(_LONGEST_KEY_FILE)
        key = base64.b64decode(text.strip(), validate=True)
    except OSError as error:
        raise KeyUnusable(f"the key file {file} cannot be read: {error.strerror}") from error
    except binascii.Error as error:
        raise KeyUnusable(f"the key file {file} is not Base64; {_how()}") from error
    if len(key) != KEY_BYTES:
        raise KeyUnusable(f"the key in {file} has {len(key)} bytes, it must have {KEY_BYTES}; {_how()}")
    return key


def _how() -> str:
    return f"make one with: openssl rand -base64 {KEY_BYTES}"


def _cipher(key: bytes, salt: bytes) -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ModuleNotFoundError as error:
        raise KeyUnusable("encrypted journals need a package: pip install 'torchserve-py[journal]'") from error
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"torchserve-py journal").derive(key))


class Sealer:
    """Seals the lines of one new file. Raises KeyUnusable."""

    def __init__(self, key: bytes) -> None:
        salt = os.urandom(_SALT_BYTES)
        self._cipher = _cipher(key, salt)
        self._count = 0
        self.first_line: Final = orjson.dumps({_SALT: base64.b64encode(salt).decode()}) + b"\n"

    def seal(self, line: bytes) -> bytes:
        """Return the next line, sealed."""
        number, self._count = self._count, self._count + 1
        sealed = self._cipher.encrypt(_nonce(number), line, None)
        return orjson.dumps({_NUMBER: number, _SEALED: base64.b64encode(sealed).decode()}) + b"\n"


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE_BYTES, "big")


def opener(first_line: bytes, key: bytes | None, file: Path) -> Callable[[bytes], bytes] | None:
    """Return what opens the lines of a file with this first line; None if the file is not encrypted.

    What it returns raises `SealBroken`. Raises KeyUnusable: the file is encrypted, and there is no key.
    """
    try:
        head = orjson.loads(first_line)
        salt = base64.b64decode(head[_SALT]) if isinstance(head, dict) and head.keys() == {_SALT} else None
    except (ValueError, TypeError):
        return None
    if salt is None:
        return None
    if key is None:
        raise KeyUnusable(f"{file} is encrypted; name the file of its key with --key-file")
    from cryptography.exceptions import InvalidTag

    cipher = _cipher(key, salt)

    def open_line(line: bytes) -> bytes:
        try:
            sealed = orjson.loads(line)
            opened: bytes = cipher.decrypt(_nonce(sealed[_NUMBER]), base64.b64decode(sealed[_SEALED]), None)
        except (InvalidTag, ValueError, KeyError, TypeError, OverflowError) as error:
            raise SealBroken("it was sealed with another key, or changed") from error
        return opened

    return open_line
