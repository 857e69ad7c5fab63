"""Renewed files are shown by listeners that are open: HTTP's key store, and the PEM files of gRPC beside it."""

import asyncio
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.endpoints.fake_serving import FakeServing
from tests.endpoints.fakes import make_settings
from tests.ops.tls.test_tls import PASSWORD, Identity

from torchserve_py.apis.grpc.grpc_listeners import start_grpc_listeners
from torchserve_py.base.metrics.metrics_plan import MetricsPlan
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.ops.tls import renewal
from torchserve_py.ops.tls.renewal import follow_certificate
from torchserve_py.ops.tls.tls import TlsError, server_context


def identity(folder: Path) -> Identity:
    folder.mkdir(exist_ok=True)
    return Identity(folder, "renewed")


async def shown(port: int) -> bytes:
    text = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port), timeout=180)
    return ssl.PEM_cert_to_DER_cert(text)


async def shows(port: int, wanted: bytes) -> None:
    async with asyncio.timeout(60):
        while await shown(port) != wanted:
            await asyncio.sleep(0.02)


class Listeners:
    """An HTTP listener, and gRPC's, whose certificates are followed."""

    def __init__(self, context: EndpointContext, http: int, grpc: int) -> None:
        self.context, self.http, self.grpc = context, http, grpc


@asynccontextmanager
async def listeners(tmp_path: Path, **files: Any) -> AsyncIterator[Listeners]:
    settings = make_settings(
        tmp_path, enable_grpc_ssl=True, grpc_inference_port=0, grpc_management_port=0, temp_dir=tmp_path, **files
    )
    context = EndpointContext(settings, FakeServing(), ServerMetrics(None, MetricsPlan()), None)  # type: ignore[arg-type]
    context.tls_contexts.append(server_context(settings, ["127.0.0.1"]))
    endpoints = await start_grpc_listeners(context)
    http = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context.tls_contexts[0])
    following = asyncio.create_task(follow_certificate(context))
    try:
        grpc = endpoints.addresses["grpc_inference_port"].port
        yield Listeners(context, http.sockets[0].getsockname()[1], grpc)
    finally:
        following.cancel()
        http.close()
        await endpoints.close()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "_INTERVAL", 0.02)


async def test_a_key_store_and_the_pem_files_of_grpc_are_both_followed(tmp_path: Path) -> None:
    store, pair = identity(tmp_path / "store"), identity(tmp_path / "pair")
    files = {"keystore": store.keystore, "keystore_pass": PASSWORD, "certificate_file": pair.certificate}
    async with listeners(tmp_path, **files, private_key_file=pair.keys["pkcs8"]) as open_ones:
        assert await shown(open_ones.http) == store.der
        assert await shown(open_ones.grpc) == pair.der
        renewed = identity(tmp_path / "pair")  # in the same files
        await shows(open_ones.grpc, renewed.der)
        assert await shown(open_ones.http) == store.der
        renewed = identity(tmp_path / "store")
        await shows(open_ones.http, renewed.der)
        assert len(open_ones.context.on_reload) == 2


async def test_pem_files_are_followed_once_for_all_listeners(tmp_path: Path) -> None:
    pair = identity(tmp_path / "pair")
    files = {"certificate_file": pair.certificate, "private_key_file": pair.keys["pkcs8"]}
    async with listeners(tmp_path, **files) as open_ones:
        renewed = identity(tmp_path / "pair")
        await shows(open_ones.grpc, renewed.der)
        await shows(open_ones.http, renewed.der)
        assert len(open_ones.context.on_reload) == 1


@pytest.mark.parametrize("name", ["certificate_file", "private_key_file", "keystore"])
async def test_what_is_no_regular_file_is_named_and_not_waited_for(tmp_path: Path, name: str) -> None:
    pair = identity(tmp_path / "pair")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    files: dict[str, Any] = {"certificate_file": pair.certificate, "private_key_file": pair.keys["pkcs8"], name: fifo}
    with pytest.raises(TlsError, match=f"{name} .* it is a FIFO, not a regular file"):
        server_context(make_settings(tmp_path, temp_dir=tmp_path, **files), [])
    with fifo.with_name("large").open("wb") as large:
        large.truncate(1 << 30)
    files[name] = fifo.with_name("large")
    with pytest.raises(TlsError, match=f"{name} .* larger than 4194304 bytes"):
        server_context(make_settings(tmp_path, temp_dir=tmp_path, **files), [])
