"""https with a key store that `keytool` has made in the format JKS."""

import asyncio
import base64
import ssl

import pytest
from cryptography import x509
from tests.endpoints.fakes import make_settings

from torchserve_py.base.settings.addresses import Address
from torchserve_py.ops.tls.java_key_store import MAGIC, UnreadableKeyStore, read_private_key
from torchserve_py.ops.tls.tls import TlsError, server_context

PASSWORD = "changeit"
#: keytool -genkeypair -keyalg EC -groupname secp256r1 -dname CN=localhost -storetype JKS -storepass changeit
STORE = base64.b64decode(
    """
/u3+7QAAAAIAAAABAAAAAQAGc2VydmVyAAABogeHIBwAAAB/MH0wDgYKKwYBBAEqAhEBAQUABGsm7wowEwrRaSJVB7XOHa5xaqE+HT+12OQVKd
i8aQIKphxQRhBECuXy9BOBZ7uONykv/PSm2baZBcrsH3I8kfTIK+lmo5TNYp4wAdNAQSR1kqxmnok8UYgQ4bRq0TXriZvUfxxwF8+exd7OzQAA
AAEABVguNTA5AAABRDCCAUAwgeegAwIBAgIIEJvGDisweGowCgYIKoZIzj0EAwIwFDESMBAGA1UEAxMJbG9jYWxob3N0MCAXDTI2MTEyMzA4Mz
AyNVoYDzIxMjYxMDMwMDgzMDI1WjAUMRIwEAYDVQQDEwlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASwwRiXbdoxGLTna093
gOiOhb/KnFf0gJRq3dhSmimJpsdA0S8/ybMK4xDb+x85a/VHMMJYx4Nb1ULxgb/bNQK1oyEwHzAdBgNVHQ4EFgQUD91dik5JRGEktMoxihCOhy
MuTSkwCgYIKoZIzj0EAwIDSAAwRQIhAOZr2dLglD9y+aFuMJ16bCJT48dOl4kZrAeIO0/FcJF8AiA/nA5rCOOu+mHKdvPQc57WtOxIDBAPCzoG
ty1eIkrdYc9Nc58+7w3FVjjqLizc1JfM6X/w
"""
)


@pytest.fixture
def keystore(tmp_path):
    path = tmp_path / "server.jks"
    path.write_bytes(STORE)
    return path


def test_the_key_of_a_store_and_its_chain():
    entry = read_private_key(STORE, PASSWORD)
    (certificate,) = map(x509.load_der_x509_certificate, entry.chain)
    assert certificate.subject.rfc4514_string() == "CN=localhost"


@pytest.mark.parametrize("kind", ["JKS", "jks", "PKCS12"])
async def test_a_listener_shows_the_certificate_of_a_store(start, keystore, kind):
    serving = await start(
        inference_address=Address("https", "127.0.0.1", 0),
        keystore=keystore,
        keystore_pass=PASSWORD,
        keystore_type=kind,
    )
    address = serving.address()
    shown = await asyncio.to_thread(ssl.get_server_certificate, (address.host, address.port), timeout=180)
    assert ssl.PEM_cert_to_DER_cert(shown) == read_private_key(STORE, PASSWORD).chain[0]


@pytest.mark.parametrize(
    ("data", "password", "message"),
    [
        (STORE, "wrong", "keystore_pass is not its password"),
        (STORE[:-1], PASSWORD, "keystore_pass is not its password, or the file is damaged"),
        (MAGIC, PASSWORD, "damaged"),
        (b"\xce\xce\xce\xce" + STORE[4:], PASSWORD, "keytool -importkeystore -srckeystore .*server.jks"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, keystore, data, password, message):
    keystore.write_bytes(data)
    with pytest.raises(TlsError, match=message):
        server_context(
            make_settings(tmp_path, keystore=keystore, keystore_pass=password, keystore_type="JKS", temp_dir=tmp_path),
            [],
        )


def test_a_store_is_not_read_beyond_its_end():
    for size in range(len(STORE)):
        with pytest.raises(UnreadableKeyStore):
            read_private_key(STORE[:size], PASSWORD)
