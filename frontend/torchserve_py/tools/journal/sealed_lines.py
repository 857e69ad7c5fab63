"""Lines of a journal that is encrypted: each is sealed with AES-256-GCM.

The first line of a file has a salt, which is new for each file. The file's own key is derived from it and the
operator's key (HKDF, SHA-256), so a line of one file cannot be opened as one of another. The nonce of a line is its
number in the file. A line that was changed cannot be opened, and whoever reads the numbers in order (`LineOrder`)
notices lines that were taken out, doubled, or moved. What is cut off at the end of a file, and files that are removed,
cannot be noticed.
"""

import base64
import binascii
import os
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


class SealedFile:
    """Opens the lines of one file. Raises KeyUnusable."""

    def __init__(self, key: bytes, salt: bytes) -> None:
        from cryptography.exceptions import InvalidTag

        self.salt: Final = salt
        self._cipher = _cipher(key, salt)
        self._broken = (InvalidTag, ValueError, KeyError, TypeError, AttributeError, OverflowError)

    def open(self, line: bytes) -> tuple[int, bytes]:
        """Return the number of a line in its file, and its text. Raises SealBroken."""
        try:
            sealed = orjson.loads(line)
            number: int = sealed[_NUMBER]
            return number, self._cipher.decrypt(_nonce(number), base64.b64decode(sealed[_SEALED]), None)
        except self._broken as error:
            raise SealBroken("it was sealed with another key, or changed") from error


class LineOrder:
    """Follows the numbers of the lines of a file: each must be the next one."""

    def __init__(self) -> None:
        self._due = 0
        self._unreadable = 0

    def unreadable(self) -> None:
        """Note a line whose number is unknown: it may be one of those that are due."""
        self._unreadable += 1

    def next(self, number: int | None) -> int:
        """Note a line with this number; return how many lines before it are missing.

        None is the number of a line that was not sealed. Raises SealBroken: a later line, or this one, came before.
        """
        if number is None:
            return 0
        if number < self._due:
            raise SealBroken("it is there twice, or was moved")
        missing = max(0, number - self._due - self._unreadable)
        self._due, self._unreadable = number + 1, 0
        return missing


def sealed_file(first_line: bytes, key: bytes | None, file: Path) -> SealedFile | None:
    """Return what opens the lines of a file with this first line; None if the file is not encrypted.

    Raises KeyUnusable: the file is encrypted, and there is no key.
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
    return SealedFile(key, salt)
