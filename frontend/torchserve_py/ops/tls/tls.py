"""The certificate of the https listeners: from a key store, else a PEM pair, else made for this run.

Protocol versions and ciphers are Python's secure defaults (TLS 1.2 and 1.3). Passwords and keys are never
logged. The package `cryptography` is imported only to read a key store or to make a certificate.
"""

from __future__ import annotations

import logging
import os
import secrets
import ssl
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from torchserve_py.ops.tls import java_key_store
from torchserve_py.ops.tls.certificate_expiry import expiry_of
from torchserve_py.ops.tls.tls_settings import TlsSettings
from ts.protocol.regular_files import read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from torchserve_py.base.settings.table import Settings

logger = logging.getLogger(__name__)

#: The most bytes of a file with a key or certificates.
_MOST_BYTES: Final = 4 << 20
_KEY_STORE_TYPES: Final = ("PKCS12", "JKS")
_SELF_SIGNED: Final = "Making a certificate, because neither keystore nor certificate_file is set,"
_LIFETIME: Final = timedelta(days=365)
#: A clock that is a little behind ours must not refuse a certificate made this second.
_CLOCK_SKEW: Final = timedelta(hours=1)


class TlsError(OSError):
    """The configured key or certificate cannot be used; the message names the setting and says what would be right."""


def server_context(settings: Settings, hosts: Iterable[str]) -> ssl.SSLContext:
    """Return the TLS context of the https listeners; a certificate made for this run names ``hosts``.

    Raises TlsError: a file is missing or unusable, or a package is not installed.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    own = settings.of(TlsSettings)
    if own.keystore is not None or own.certificate_file is not None or own.private_key_file is not None:
        read_certificate(settings).load(context)
    else:
        _use_self_signed(context, settings, hosts)
    return context


class Certificate(NamedTuple):
    """What was read of files; they may change before it is loaded, and a context would lose its key by a wrong pair.

    ``load`` gives it to a context, which may be in use; ``expires_at`` is in seconds since 1970.
    """

    load: Callable[[ssl.SSLContext], None]
    expires_at: float


def read_certificate(settings: Settings) -> Certificate:
    """Read ``keystore``, or ``certificate_file`` with its key; one of them is set.

    Raises TlsError: a file is missing or unusable; so does `Certificate.load`.
    """
    store = settings.of(TlsSettings).keystore
    return read_files(settings) if store is None else _read_key_store(settings, store)


def read_files(settings: Settings) -> Certificate:
    """Read ``certificate_file`` and ``private_key_file``, of which one is set; raises as `read_certificate`."""
    own = settings.of(TlsSettings)
    if own.certificate_file is None or own.private_key_file is None:
        raise TlsError("certificate_file and private_key_file: TLS needs both (or neither)")
    chain, key = _read("certificate_file", own.certificate_file), _read("private_key_file", own.private_key_file)

    def unusable(error: Exception) -> TlsError:
        return TlsError(
            f"certificate_file {own.certificate_file} and private_key_file {own.private_key_file} cannot be"
            f" used: {error}; they must hold a chain and its key, without a password, in PEM"
        )

    def load(context: ssl.SSLContext) -> None:
        folder = settings.temp_dir
        with _private_file(folder, chain) as chain_path, _private_file(folder, key) as key_path:
            try:
                # The empty password keeps OpenSSL from asking for one at the terminal.
                context.load_cert_chain(chain_path, key_path, password="")
            except (ssl.SSLError, ValueError) as error:
                raise unusable(error) from error

    try:
        return Certificate(load, expiry_of(chain.decode("latin-1")))
    except ValueError as error:
        raise unusable(error) from error


def check_certificate(settings: Settings) -> None:
    """Raise TlsError if `server_context` would."""
    own = settings.of(TlsSettings)
    if own.keystore is not None or own.certificate_file is not None or own.private_key_file is not None:
        server_context(settings, ())
    elif find_spec("cryptography") is None:
        raise _not_installed(_SELF_SIGNED)


def _read_key_store(settings: Settings, path: Path) -> Certificate:
    """Read the key store; as in Java, its content tells which of the two formats it has."""
    own = settings.of(TlsSettings)
    if own.keystore_type.upper() not in _KEY_STORE_TYPES:
        raise TlsError(
            f"keystore_type {own.keystore_type} is not supported, only {' and '.join(_KEY_STORE_TYPES)} are;"
            f" convert the key store: {_conversion(path)}, and set keystore to the new file"
        )
    data, password = _read("keystore", path), own.keystore_pass
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_der_private_key, pkcs12
    except ImportError as error:
        raise _not_installed("Reading keystore") from error
    try:
        if data.startswith(java_key_store.MAGIC):
            entry = java_key_store.read_private_key(data, password)
            key = None if entry is None else load_der_private_key(entry.key, None)
            chain = [] if entry is None else [x509.load_der_x509_certificate(each) for each in entry.chain]
        else:
            key, certificate, others = pkcs12.load_key_and_certificates(data, password.encode())
            chain = [] if certificate is None else [certificate, *others]
    except java_key_store.UnreadableKeyStore as error:
        raise TlsError(f"keystore {path} cannot be read: {error}") from error
    except ValueError as error:
        raise TlsError(
            f"keystore {path} cannot be read: keystore_pass is not its password, or it is not a key store in the"
            f" formats {' and '.join(_KEY_STORE_TYPES)}; keytool converts others: {_conversion(path)}"
        ) from error
    if key is None or not chain:
        raise TlsError(f"keystore {path} holds no private key with its certificate")
    expires_at = chain[0].not_valid_after_utc.timestamp()
    return Certificate(lambda context: _load(context, settings.temp_dir, key, chain), expires_at)


def _conversion(path: Path) -> str:
    return f"keytool -importkeystore -srckeystore {path} -destkeystore {path.stem}.p12 -deststoretype PKCS12"


def _use_self_signed(context: ssl.SSLContext, settings: Settings, hosts: Iterable[str]) -> None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise _not_installed(_SELF_SIGNED) from error
    alternatives: list[x509.GeneralName] = []
    for name in sorted({"localhost", "127.0.0.1", *hosts}):
        try:
            alternatives.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            alternatives.append(x509.DNSName(name))
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "torchserve-py")])
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    certificate = builder.sign(key, hashes.SHA256())
    logger.warning(
        "https listeners show a self-signed certificate made for this run, which clients cannot verify (SHA-256 %s);"
        " set certificate_file and private_key_file, or keystore.",
        certificate.fingerprint(hashes.SHA256()).hex(),
    )
    _load(context, settings.temp_dir, key, [certificate])


def _load(context: ssl.SSLContext, folder: Path, key: PrivateKeyTypes, chain: list[x509.Certificate]) -> None:
    """Give a key and its certificates to OpenSSL through an encrypted file, which is there only meanwhile."""
    from cryptography.hazmat.primitives import serialization

    password = secrets.token_bytes(32).hex().encode()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    pem += b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in chain)
    with _private_file(folder, pem) as path:
        try:
            context.load_cert_chain(path, password=password)
        except ssl.SSLError as error:
            raise TlsError(f"the key cannot be used for TLS: {error}") from error


@contextmanager
def _private_file(folder: Path, content: bytes) -> Iterator[str]:
    """Yield the path of a file for OpenSSL, which reads nothing else: in memory where the system has such files."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile(dir=folder, prefix="torchserve-tls-") as file:  # mode 0600
            file.write(content)
            file.flush()
            yield file.name
        return
    with open(os.memfd_create("torchserve-tls"), "wb") as memory:
        memory.write(content)
        memory.flush()
        yield f"/proc/self/fd/{memory.fileno()}"


def _read(name: str, path: Path) -> bytes:
    """Return what a setting's file holds; OpenSSL would wait for a FIFO, and read without a limit."""
    try:
        return read_regular(path, _MOST_BYTES)
    except OSError as error:
        raise TlsError(f"{name} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TlsError(f"{name} {path} cannot be read: {error}") from error


def _not_installed(what: str) -> TlsError:
    return TlsError(f"{what} needs the package cryptography: pip install 'torchserve-py[tls]'")
