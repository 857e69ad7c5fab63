"""Reads a Java key store (JKS), the default format of `keytool` before Java 9.

Numbers are big-endian; texts are two bytes of length and UTF-8. After a head (magic number, version, number of entries)
come the entries, and then the SHA-1 digest of the password, a fixed text and everything before. A private key is
encrypted with a stream of SHA-1 digests, each of the password and the digest before; the first follows from a salt.
"""

import hashlib
import hmac
import struct
from typing import Final, NamedTuple

MAGIC: Final = b"\xfe\xed\xfe\xed"
_VERSIONS: Final = (1, 2)
_PRIVATE_KEY, _CERTIFICATE = 1, 2
_DIGEST_TEXT: Final = b"Mighty Aphrodite"
_DIGEST_SIZE: Final = hashlib.sha1(usedforsecurity=False).digest_size
_SEQUENCE, _OCTET_STRING = 0x30, 0x04
_LONG_FORM: Final = 0x80


class UnreadableKeyStore(ValueError):
    """The file is damaged, or the password is wrong; the message says which."""


class PrivateKeyEntry(NamedTuple):
    """A key in PKCS #8 and the chain of its certificates in X.509, the key's own first, all in DER."""

    key: bytes
    chain: list[bytes]


def read_private_key(data: bytes, password: str) -> PrivateKeyEntry | None:
    """Return the first private key of a key store; None if it has none.

    Raises UnreadableKeyStore: see there.
    """
    secret = password.encode("utf-16-be")
    digest = hashlib.sha1(secret + _DIGEST_TEXT + data[:-_DIGEST_SIZE], usedforsecurity=False).digest()
    if not hmac.compare_digest(digest, data[-_DIGEST_SIZE:]):
        raise UnreadableKeyStore("keystore_pass is not its password, or the file is damaged")
    try:
        return _first_key(_Reader(data[:-_DIGEST_SIZE]), secret)
    except (struct.error, IndexError) as error:
        raise UnreadableKeyStore("the file is damaged") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, size: str) -> int:
        (value,) = struct.unpack_from(f">{size}", self._data, self._at)
        self._at += struct.calcsize(f">{size}")
        return int(value)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) != size:
            raise IndexError(size)
        self._at += size
        return taken

    def text(self) -> bytes:
        return self.take(self.number("H"))

    def certificate(self, version: int) -> bytes:
        if version > 1:
            self.text()  # the type, always X.509
        return self.take(self.number("I"))


def _first_key(reader: _Reader, secret: bytes) -> PrivateKeyEntry | None:
    reader.take(len(MAGIC))
    version = reader.number("I")
    if version not in _VERSIONS:
        raise UnreadableKeyStore(f"its version is {version}, not one of {', '.join(map(str, _VERSIONS))}")
    for _ in range(reader.number("I")):
        kind = reader.number("I")
        reader.text()  # the alias
        reader.number("Q")  # the date
        if kind == _PRIVATE_KEY:
            protected = reader.take(reader.number("I"))
            chain = [reader.certificate(version) for _ in range(reader.number("I"))]
            return PrivateKeyEntry(_decrypted(_encrypted_data(protected), secret), chain)
        if kind != _CERTIFICATE:
            raise UnreadableKeyStore("the file is damaged")
        reader.certificate(version)
    return None


def _encrypted_data(protected: bytes) -> bytes:
    """Return the second member of the EncryptedPrivateKeyInfo of PKCS #8; the first names Java's own encryption."""
    (content, _) = _value(protected, 0, _SEQUENCE)
    (_, after) = _value(content, 0, _SEQUENCE)
    return _value(content, after, _OCTET_STRING)[0]


def _value(data: bytes, at: int, tag: int) -> tuple[bytes, int]:
    """Return the content of the value in DER that begins there, and where it ends."""
    if data[at] != tag:
        raise UnreadableKeyStore("the file is damaged")
    size, begin = data[at + 1], at + 2
    if size >= _LONG_FORM:
        begin += size - _LONG_FORM
        size = int.from_bytes(data[at + 2 : begin])
    return data[begin : begin + size], begin + size


def _decrypted(data: bytes, secret: bytes) -> bytes:
    salt, encrypted, check = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    stream, last = b"", salt
    while len(stream) < len(encrypted):
        last = hashlib.sha1(secret + last, usedforsecurity=False).digest()
        stream += last
    key = bytes(one ^ other for one, other in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
        raise UnreadableKeyStore("its private key has another password than the store; give both the same")
    return key
