"""The certificate authority of one server: it signs for the server and for workers on other machines.

Its key never leaves the memory of the server, and a worker's key never leaves the worker's machine. A worker's
certificate names the token that the server expects it with.
"""

import ssl
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

#: A worker connects right after its start; the frontend's certificate lasts as long as any server.
_WORKER_VALIDITY: Final = timedelta(hours=1)
_VALIDITY: Final = timedelta(days=3650)
#: Clocks of machines differ.
_BEFORE: Final = timedelta(days=1)


class Authority:
    """Signs certificates; makes the TLS context that accepts only those who have one."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "torchserve-py workers")])
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = self._sign(self._name, self._key.public_key(), _VALIDITY, constraints)

    @property
    def certificate(self) -> bytes:
        """The authority's own certificate (PEM)."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, request: bytes, token: str) -> bytes:
        """Return the certificate (PEM) of the worker that is expected with a token.

        Raises ValueError: ``request`` is no certificate signing request (PEM), or not signed with its own key.
        """
        asked = x509.load_pem_x509_csr(request)
        if not asked.is_signature_valid:
            raise ValueError("the request for a certificate is not signed with its own key")
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, token)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        signed = self._sign(name, asked.public_key(), _WORKER_VALIDITY, usage)
        return signed.public_bytes(serialization.Encoding.PEM)

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a listener that takes only workers with a certificate of this authority. Blocks."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "torchserve-py")])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        own = self._sign(name, key.public_key(), _VALIDITY, usage)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0  # a ticket would look like a message to a worker that polls its socket
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate.decode())
        with tempfile.NamedTemporaryFile() as file:  # mode 0600; OpenSSL reads certificates from files only
            file.write(
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                )
            )
            file.write(own.public_bytes(serialization.Encoding.PEM))
            file.flush()
            context.load_cert_chain(Path(file.name))
        return context

    def _sign(
        self, subject: x509.Name, public: Any, validity: timedelta, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder(self._name, subject, public, x509.random_serial_number())
        builder = builder.not_valid_before(now - _BEFORE).not_valid_after(now + validity)
        return builder.add_extension(extension, critical=True).sign(self._key, hashes.SHA256())
