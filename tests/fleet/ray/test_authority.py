"""Certificates of workers on other machines: who gets in, and as whom."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from torchserve_py.core.workers import listener as module
from torchserve_py.core.workers.connection import WorkerConnection
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.fleet.ray.authority import Authority
from ts.connection.frontend_connection import FrontendConnection, FrontendGone
from ts.connection.worker_socket import tls_address
from ts.protocol.messages import JOBS_CHANNEL, Hello

DEADLINE = 60.0


class Owner:
    """Waits for one worker."""

    def __init__(self) -> None:
        self.hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self.messages = asyncio.Queue[list[Any]]()
        self.connection: WorkerConnection | None = None

    def connected(self, connection: WorkerConnection, hello: Hello) -> None:
        connection.limit_frames(2**24, 1000)
        connection.on_message = lambda _, message: self.messages.put_nowait(message)
        self.connection = connection
        self.hello.set_result(hello)


def worker_files(folder: Path, authority: Authority, trusted: Authority, token: str) -> Path:
    """Make what a worker has whose certificate `authority` has signed, and which trusts `trusted`."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder(x509.Name([])).sign(key, hashes.SHA256())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    folder.mkdir()
    (folder / "worker.pem").write_bytes(
        private + authority.sign(request.public_bytes(serialization.Encoding.PEM), token)
    )
    (folder / "authority.pem").write_bytes(trusted.certificate)
    return folder


async def listening(tmp_path: Path, authority: Authority) -> tuple[WorkerListener, int]:
    listener = WorkerListener(tmp_path)
    await listener.start()
    return listener, await listener.listen("127.0.0.1", authority.server_context())


async def test_a_worker_is_who_its_certificate_says(tmp_path: Path) -> None:
    authority = Authority()
    listener, port = await listening(tmp_path, authority)
    owner, other = Owner(), Owner()
    token, others = listener.expect(owner), listener.expect(other)
    address = tls_address("127.0.0.1", port, worker_files(tmp_path / "w", authority, authority, token))
    # It says that it is the other one.
    worker = await asyncio.to_thread(FrontendConnection, address, JOBS_CHANNEL, others)
    hello = await asyncio.wait_for(owner.hello, DEADLINE)
    assert (hello["token"], other.hello.done()) == (token, False)
    large = ["large", b"x" * 3_000_000, "end"]
    await asyncio.to_thread(worker.send, large)
    assert await asyncio.wait_for(owner.messages.get(), DEADLINE) == large
    worker.close()
    await listener.close()


@pytest.mark.parametrize("who", ["another authority's worker", "a worker that nobody expects"])
async def test_who_is_not_expected_is_not_let_in(tmp_path: Path, who: str) -> None:
    authority = Authority()
    listener, port = await listening(tmp_path, authority)
    owner = Owner()
    token = listener.expect(owner)
    if who == "a worker that nobody expects":
        listener.forget(token)
        files = worker_files(tmp_path / "w", authority, authority, token)
    else:
        files = worker_files(tmp_path / "w", Authority(), authority, token)

    def come() -> str:
        try:
            worker = FrontendConnection(tls_address("127.0.0.1", port, files), JOBS_CHANNEL, token)
            return f"got {worker.receive(wait=True)}"
        except (FrontendGone, OSError):
            return "refused"

    assert await asyncio.wait_for(asyncio.to_thread(come), DEADLINE) == "refused"
    assert not owner.hello.done()
    await listener.close()


async def test_a_worker_talks_to_its_own_server_only(tmp_path: Path) -> None:
    authority = Authority()
    listener, port = await listening(tmp_path, authority)
    files = worker_files(tmp_path / "w", authority, Authority(), listener.expect(Owner()))
    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(FrontendConnection, tls_address("127.0.0.1", port, files), JOBS_CHANNEL, "")
    await listener.close()


def test_a_request_is_signed_with_its_own_key() -> None:
    with pytest.raises(ValueError, match="Unable to load PEM"):
        Authority().sign(b"no request", "token")


async def test_who_stalls_the_handshake_makes_room_and_keeps_no_worker_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_STRANGERS", 10)
    authority, owner = Authority(), Owner()
    listener, port = await listening(tmp_path, authority)
    streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    async with asyncio.timeout(DEADLINE):
        for reader, _ in streams[:40]:
            assert await reader.read() == b""
    files = worker_files(tmp_path / "worker", authority, authority, listener.expect(owner))
    worker = asyncio.to_thread(FrontendConnection, tls_address("127.0.0.1", port, files), JOBS_CHANNEL, "", 0)
    connecting = asyncio.create_task(worker)
    async with asyncio.timeout(DEADLINE):
        assert (await owner.hello)["channel"] == JOBS_CHANNEL
    await connecting
    for _, writer in streams:
        writer.close()
    await listener.close()
