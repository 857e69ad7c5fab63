"""Downloads over TLS, through proxies, and from servers that never end."""

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from unittest import mock

import pytest
from tests.core.archive.conftest import ANY, CONTENT, LOOPBACK, WebServer, files_in, sends
from tests.ops.tls.test_tls import Identity

from torchserve_py.core.archive import fetch as downloading
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import DownloadError


def fetch(url: str, store: Path) -> Path:
    return downloading.fetch(url, store, DownloadPolicy(ANY, LOOPBACK))


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server whose certificate is for localhost, and known as long as SSL_CERT_FILE is set."""
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    identity = Identity(tmp_path, "downloads")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.certificate, identity.keys["pkcs8"])
    monkeypatch.setenv("SSL_CERT_FILE", str(identity.certificate))
    web = WebServer()
    web.server.socket = context.wrap_socket(web.server.socket, server_side=True)
    web.server.handle_error = lambda *_: None  # type: ignore[method-assign]
    web.answers["/x.mar"] = sends(CONTENT)
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"https://localhost:{web.server.server_port}/x.mar"
    web.server.shutdown()
    web.server.server_close()
    thread.join(timeout=10)


def test_an_archive_comes_over_tls(secure: str, model_store: Path) -> None:
    assert fetch(secure, model_store).read_bytes() == CONTENT


def test_a_certificate_for_another_host_or_of_nobody_known_is_refused(
    secure: str, model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DownloadError, match="certificate verify failed: IP address mismatch"):
        fetch(secure.replace("localhost", "127.0.0.1"), model_store)
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DownloadError, match="certificate verify failed: self-signed"):
        fetch(secure, model_store)
    assert files_in(model_store) == []


@pytest.fixture
def tunnel() -> Iterator[tuple[str, list[str]]]:
    """The URL of a proxy that connects to what is asked for, and what it was asked, with the credentials."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(f"{self.path} {self.headers['proxy-authorization']}")
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as there:
                self.send_response(200)
                self.end_headers()
                ends = {there: self.connection, self.connection: there}
                while True:
                    for ready in select.select(list(ends), [], [])[0]:
                        if not (data := ready.recv(1 << 16)):
                            return
                        ends[ready].sendall(data)

        def log_message(self, *_: object) -> None:
            pass

    web = WebServer()
    web.server.RequestHandlerClass = Handler
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield web.url, asked
    web.server.shutdown()
    web.server.server_close()
    thread.join(timeout=10)


def test_a_proxy_connects_to_servers_with_tls(
    secure: str, tunnel: tuple[str, list[str]], model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, asked = tunnel
    monkeypatch.setenv("https_proxy", proxy.replace("http://", "http://user:p%40ss@"))
    assert fetch(secure, model_store).read_bytes() == CONTENT
    assert asked == [f"{secure.removeprefix('https://').partition('/')[0]} Basic dXNlcjpwQHNz"]


def test_a_proxy_must_speak_http(secure: str, model_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "socks5://user:secret@127.0.0.1:1")
    with pytest.raises(DownloadError, match=r"the proxy .* must be http://HOST:PORT, its scheme is 'socks5'"):
        fetch(secure, model_store)


@pytest.mark.parametrize("begun", [b"x: ", b"\r\nPK"])
def test_a_server_that_never_ends_is_given_up(begun: bytes, web: WebServer, model_store: Path) -> None:
    done = threading.Event()

    def never_ends(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\n" + begun)
        while not done.wait(0.01):
            request.wfile.write(b"x")

    web.answers["/x.mar"] = never_ends
    try:
        with mock.patch.object(downloading, "TOTAL_SECONDS", 0.3), pytest.raises(DownloadError, match="took longer"):
            fetch(f"{web.url}/x.mar", model_store)
    finally:
        done.set()
    assert files_in(model_store) == []


def test_an_answer_that_ends_within_its_headers_is_no_archive(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = lambda request: request.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-le")
    with pytest.raises(DownloadError, match="nothing came"):
        fetch(f"{web.url}/x.mar", model_store)
    assert files_in(model_store) == []


def test_what_may_not_stand_in_a_request_is_percent_encoded(web: WebServer, model_store: Path) -> None:
    web.answers["/a%20b/m%C3%B6d%2Fx.mar?q=%22a%20b%22"] = sends(CONTENT)
    (model_store / "sub").mkdir()
    assert fetch(f'{web.url}/a b/m\u00f6d%2Fx.mar?q="a b"', model_store).read_bytes() == CONTENT
