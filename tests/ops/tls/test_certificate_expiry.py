"""When a certificate expires, as Python reads it and as the package cryptography does."""

from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from torchserve_py.ops.tls.certificate_expiry import expiry_of


def pem(until: datetime) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = builder.not_valid_before(datetime(2000, 1, 1, tzinfo=UTC)).not_valid_after(until).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize("year", [2001, 2049, 2050, 2199])
def test_the_first_certificate_counts(year: int) -> None:
    until = datetime(year, 12, 31, 23, 59, 58, tzinfo=UTC)
    chain = "some words before\n" + pem(until) + pem(datetime(2030, 1, 1, tzinfo=UTC))
    assert expiry_of(chain) == until.timestamp()


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="certificate"):
        expiry_of(text)
