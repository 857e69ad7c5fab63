"""The certificate of the https listeners: from a key store, else a PEM pair, else made for this run.

Protocol versions and ciphers are Python's secure defaults (TLS 1.2 and 1.3). Passwords and keys are never
logged. The package `cryptography` is imported only to read a key store or to make a certificate.
"""

from __future__ import annotations

import logging
import secrets
import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchserve_py.features.tls import java_key_store
from torchserve_py.features.tls.certificate_expiry import expiry_of
from torchserve_py.features.tls.tls_settings import TlsSettings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

    from torchserve_py.settings.table import Settings

logger = logging.getLogger(__name__)

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
        load_certificate(context, settings)
    else:
        _use_self_signed(context, settings, hosts)
    return context


def load_certificate(context: ssl.SSLContext, settings: Settings) -> float:
    """Load ``keystore``, or ``certificate_file`` with its key, into a context, which may be in use; one of them is set.

    Return when the certificate expires, in seconds since 1970. Raises TlsError: a file is missing or unusable.
    """
    store = settings.of(TlsSettings).keystore
    return use_files(context, settings) if store is None else _use_key_store(context, settings, store)


def use_files(context: ssl.SSLContext, settings: Settings) -> float:
    """Load ``certificate_file`` and ``private_key_file``, at least one of which is set.

    Return when the certificate expires, in seconds since 1970. Raises TlsError: a file is missing or unusable.
    """
    own = settings.of(TlsSettings)
    if own.certificate_file is None or own.private_key_file is None:
        raise TlsError("certificate_file and private_key_file: TLS needs both (or neither)")
    for name in ("certificate_file", "private_key_file"):
        _check_readable(name, getattr(own, name))
    try:
        # The empty password keeps OpenSSL from asking for one at the terminal.
        context.load_cert_chain(own.certificate_file, own.private_key_file, password="")
        return expiry_of(own.certificate_file.read_text(encoding="latin-1"))
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(
            f"certificate_file {own.certificate_file} and private_key_file {own.private_key_file} cannot be"
            f" used: {error}; they must hold a chain and its key, without a password, in PEM"
        ) from error


def check_certificate(settings: Settings) -> None:
    """Raise TlsError if `server_context` would."""
    own = settings.of(TlsSettings)
    if own.keystore is not None or own.certificate_file is not None or own.private_key_file is not None:
        server_context(settings, ())
    elif find_spec("cryptography") is None:
        raise _not_installed(_SELF_SIGNED)


def _use_key_store(context: ssl.SSLContext, settings: Settings, path: Path) -> float:
    """Load the key store; as in Java, its content tells which of the two formats it has."""
    own = settings.of(TlsSettings)
    if own.keystore_type.upper() not in _KEY_STORE_TYPES:
        raise TlsError(
            f"keystore_type {own.keystore_type} is not supported, only {' and '.join(_KEY_STORE_TYPES)} are;"
            f" convert the key store: {_conversion(path)}, and set keystore to the new file"
        )
    _check_readable("keystore", path)
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import load_der_private_key, pkcs12
    except ImportError as error:
        raise _not_installed("Reading keystore") from error
    data, password = path.read_bytes(), own.keystore_pass
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
    _load(context, settings.temp_dir, key, chain)
    return chain[0].not_valid_after_utc.timestamp()


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
    """Give a key and its certificates to OpenSSL through an encrypted file, which is deleted at once."""
    from cryptography.hazmat.primitives import serialization

    password = secrets.token_bytes(32).hex().encode()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(password)
    )
    pem += b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in chain)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="torchserve-tls-") as file:  # mode 0600
        file.write(pem)
        file.flush()
        try:
            context.load_cert_chain(file.name, password=password)
        except ssl.SSLError as error:
            raise TlsError(f"the key cannot be used for TLS: {error}") from error


def _check_readable(name: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise TlsError(f"{name} {path} cannot be read: {error.strerror}") from error


def _not_installed(what: str) -> TlsError:
    return TlsError(f"{what} needs the package cryptography: pip install 'torchserve-py[tls]'")
