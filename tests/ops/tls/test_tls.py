"""https listeners: which certificate they show, what they refuse, and what they answer to plain HTTP."""

import asyncio
import json
import logging
import ssl
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID
from tests.endpoints.conftest import OpenEndpoints, open_endpoints
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import FakeMetrics, make_settings

from torchserve_py.base.settings.addresses import Address
from torchserve_py.ops.tls.tls import TlsError, server_context

HTTPS = Address("https", "127.0.0.1", 0)
PASSWORD = "a password that nobody may see"


class Identity:
    """A key and a certificate for 127.0.0.1, in every form that the server reads."""

    def __init__(self, folder, name):
        key = rsa.generate_private_key(65537, 2048)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(key, hashes.SHA256())
        )
        self.der = certificate.public_bytes(serialization.Encoding.DER)
        self.certificate = folder / "cert.pem"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        forms = {
            "pkcs8": (serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
            "pkcs1": (serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()),
            "locked": (serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")),
        }
        self.keys = {}
        for form, (private_format, encryption) in forms.items():
            self.keys[form] = folder / f"{form}.pem"
            self.keys[form].write_bytes(key.private_bytes(serialization.Encoding.PEM, private_format, encryption))
        self.keystore = folder / "keystore.p12"
        encryption = serialization.BestAvailableEncryption(PASSWORD.encode())
        store = pkcs12.serialize_key_and_certificates(b"server", key, certificate, None, encryption)
        self.keystore.write_bytes(store)


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    return Identity(tmp_path_factory.mktemp("tls"), "configured")


def shown_certificate(address):
    return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((address.host, address.port), timeout=180))


async def post(address, body=b"x", **client):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), **client) as session,
        session.post(f"{address}/predictions/noop", data=body) as response,
    ):
        return response.status, await response.read()


@pytest.mark.parametrize("form", ["pkcs8", "pkcs1"])
async def test_a_pair_of_pem_files(start, identity, form):
    files = {"certificate_file": identity.certificate, "private_key_file": identity.keys[form]}
    serving = await start(inference_address=HTTPS, **files)
    assert await post(serving.address()) == (200, b"x")
    assert await asyncio.to_thread(shown_certificate, serving.address()) == identity.der
    assert (await serving.request("GET", "/models", endpoint="management")).status == 200  # that one is plain


async def test_a_key_store_wins_over_files_and_leaves_no_trace(start, identity, tmp_path, caplog):
    temp = tmp_path / "temp"
    temp.mkdir()
    serving = await start(
        inference_address=HTTPS,
        keystore=identity.keystore,
        keystore_pass=PASSWORD,
        keystore_type="pkcs12",
        certificate_file=tmp_path / "nothing.pem",
        temp_dir=temp,
    )
    assert await asyncio.to_thread(shown_certificate, serving.address()) == identity.der
    assert list(temp.iterdir()) == []
    assert PASSWORD not in caplog.text


async def test_without_either_a_certificate_is_made_and_its_fingerprint_told(start, tmp_path, caplog):
    serving = await start(inference_address=HTTPS, temp_dir=tmp_path)
    der = await asyncio.to_thread(shown_certificate, serving.address())
    certificate = x509.load_der_x509_certificate(der)
    assert certificate.fingerprint(hashes.SHA256()).hex() in caplog.text
    trusting = ssl.create_default_context(cadata=der)
    for host in ("127.0.0.1", "localhost"):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", serving.address().port, ssl=trusting, server_hostname=host
        )
        writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i, f: {"certificate_file": i.certificate}, "both"),
        (
            lambda i, f: {"certificate_file": i.certificate, "private_key_file": i.keys["locked"]},
            "without a password",
        ),
        (lambda i, f: {"certificate_file": i.certificate, "private_key_file": i.certificate}, "private_key_file"),
        (
            lambda i, f: {"certificate_file": f / "no.pem", "private_key_file": i.keys["pkcs8"]},
            "No such file or directory",
        ),
        (lambda i, f: {"keystore": i.keystore, "keystore_pass": "wrong"}, "keystore_pass is not its password"),
        (lambda i, f: {"keystore": i.certificate, "keystore_pass": PASSWORD}, "not a key store"),
        (lambda i, f: {"keystore": f / "no.p12"}, "No such file or directory"),
        (lambda i, f: {"keystore": i.keystore, "keystore_type": "BKS"}, "-deststoretype PKCS12"),
    ],
)
def test_what_cannot_be_used_is_named(identity, tmp_path, make, message):
    with pytest.raises(TlsError, match=message) as error:
        server_context(make_settings(tmp_path, temp_dir=tmp_path, **make(identity, tmp_path)), ["127.0.0.1"])
    assert PASSWORD not in str(error.value)


@pytest.mark.parametrize("keystore", [True, False])
def test_a_missing_package_is_named_with_what_to_install(identity, tmp_path, monkeypatch, keystore):
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    settings = make_settings(tmp_path, keystore=identity.keystore if keystore else None)
    with pytest.raises(TlsError, match=r"pip install 'torchserve-py\[tls\]'"):
        server_context(settings, ["127.0.0.1"])


def test_pem_files_need_no_package(identity, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.setitem(sys.modules, name, None)
    files = {"certificate_file": identity.certificate, "private_key_file": identity.keys["pkcs8"]}
    assert server_context(make_settings(tmp_path, **files), []).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_plain_http_is_told_to_use_https(start):
    serving = await start(inference_address=HTTPS)
    connection = await serving.raw(b"POST /predictions/noop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx")
    head = await connection.head()
    assert head.startswith("http/1.1 403 forbidden\r\n")
    assert "content-type: application/json" in head
    assert "connection: close" in head
    assert json.loads(await connection.rest()) == {"status": "This TorchServe instance only accepts HTTPS requests"}
    assert serving.registry.model.calls == []


@pytest.mark.parametrize("first_bytes", [b"", b"\x16\x03\x01\x00\x05nonsense, and no handshake", b"\x16"])
async def test_those_who_do_not_shake_hands_hinder_nobody(start, first_bytes):
    serving = await start(inference_address=HTTPS)
    silent = await serving.raw(first_bytes)
    assert await post(serving.address()) == (200, b"x")
    async with asyncio.timeout(60):
        await serving.endpoints.close()
    await silent.close()


async def test_those_who_leave_without_a_word_hinder_nobody(start, caplog):
    caplog.set_level(logging.WARNING)
    serving = await start(inference_address=HTTPS)
    for _ in range(20):
        await (await serving.raw(b"")).close()
    assert await post(serving.address()) == (200, b"x")
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []


async def test_old_protocol_versions_are_refused(start):
    serving = await start(inference_address=HTTPS)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", serving.address().port, ssl=old)


async def test_large_bodies_both_ways_and_many_at_once(start):
    serving = await start(inference_address=HTTPS)
    bodies = [bytes([number]) * 1_000_000 for number in range(8)]
    answers = await asyncio.gather(*(post(serving.address(), body) for body in bodies))
    assert answers == [(200, body) for body in bodies]


async def test_a_shared_https_port(start):
    serving = await start(inference_address=HTTPS)
    address = replace(HTTPS, port=serving.address().port)
    await serving.endpoints.close()
    again = await start(inference_address=address, management_address=address)
    assert again.address() == again.address("management") == address
    assert await post(address) == (200, b"x")


def test_under_the_servers_own_event_loop(tmp_path):
    async def run():
        settings = make_settings(tmp_path, inference_address=HTTPS)
        registry, metrics = FakeServing(), FakeMetrics()
        endpoints = await open_endpoints(settings, registry, metrics)
        serving = OpenEndpoints(endpoints, registry, metrics, tmp_path / "key_file.json")
        try:
            body = b"x" * 3_000_000
            assert await asyncio.gather(*(post(serving.address(), body) for _ in range(4))) == [(200, body)] * 4
            plain = await serving.raw(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await plain.head()).startswith("http/1.1 403 ")
            assert b"only accepts HTTPS" in await plain.rest()
            silent = await serving.raw(b"\x16")
            noisy = await serving.raw(b"\x16\x03\x01\x00\x05nonsense")
            await noisy.rest()
            await serving.client.close()
            async with asyncio.timeout(60):
                await endpoints.close()
            await silent.close()
        finally:
            await serving.client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
