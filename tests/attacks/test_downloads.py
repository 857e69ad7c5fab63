"""URLs of registrations that were to reach addresses of this machine past the policy on addresses."""

import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path

import pytest

from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import DownloadError
from torchserve_py.core.archive.fetch import fetch

EVERY_URL = [re.compile(".*")]
PORT = "{port}"
#: Each of them means this machine to somebody; none is in the network that the second test allows.
SPELLINGS = [
    "http://127.0.0.%31:{port}/x.mar",
    "http://127.0.0.%32:{port}/x.mar",
    "http://localhos%74:{port}/x.mar",
    "http://%6c%6f%63%61%6c%68%6f%73%74:{port}/x.mar",
    "http://127.0.0.1%3A{port}/x.mar",
    "http://%5B::1%5D:{port}/x.mar",
    "http://[::1%25lo]:{port}/x.mar",
    "http://[::1%lo]:{port}/x.mar",
    "http://[::ffff:127.0.0.2]:{port}/x.mar",
    "http://[::ffff:7f00:2]:{port}/x.mar",
    "http://[0:0:0:0:0:0:0:1]:{port}/x.mar",
    "http://[2002:7f00:2::]:{port}/x.mar",
    "http://[64:ff9b::7f00:2]:{port}/x.mar",
    "http://0:{port}/x.mar",
    "http://0x7f.2:{port}/x.mar",
    "http://0177.0.0.2:{port}/x.mar",
    "http://127.2:{port}/x.mar",
    "http://2130706434:{port}/x.mar",
    "http://127.0.0.2.:{port}/x.mar",
    "http://localhost.:{port}/x.mar",
    "http://ip6-localhost:{port}/x.mar",
    "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2461:{port}/x.mar",
    "http://127\u30020\u30020\u30022:{port}/x.mar",
    "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54:{port}/x.mar",
    "http://h.example\\@127.0.0.2:{port}/x.mar",
    "http://h.example@127.0.0.2:{port}/x.mar",
    "http://127.0.0.2:{port}\\@h.example/x.mar",
    "http://127.0.0.2:{port}%20h.example/x.mar",
    "http://127.0.0.2\t:{port}/x.mar",
    "http:/127.0.0.2:{port}/x.mar",
    "http:////127.0.0.2:{port}/x.mar",
    "http:127.0.0.2:{port}/x.mar",
]


class Redirecting(ThreadingHTTPServer):
    """Answers every request with a redirect, and counts the connections."""

    daemon_threads = True

    def __init__(self) -> None:
        self.location = ""
        super().__init__(("127.0.0.1", 0), _Redirect)


class _Redirect(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Redirecting)
        self.send_response(302)
        self.send_header("location", self.server.location)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def redirecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Redirecting]:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Redirecting() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def inside() -> Iterator[socket.socket]:
    """A service at every address of this machine, in both families where there are both."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    listening = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
    listening.setblocking(False)
    yield listening
    with pytest.raises(BlockingIOError):
        listening.accept()  # nobody has connected
    listening.close()


def url_to(spelling: str, service: socket.socket) -> str:
    return spelling.replace(PORT, str(service.getsockname()[1]))


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_spelling_of_an_address_reaches_this_machine(spelling: str, inside: socket.socket, tmp_path: Path) -> None:
    with pytest.raises(DownloadError):
        fetch(url_to(spelling, inside), tmp_path, DownloadPolicy(EVERY_URL))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_no_redirect_reaches_this_machine(
    spelling: str, inside: socket.socket, redirecting: Redirecting, tmp_path: Path
) -> None:
    redirecting.location = url_to(spelling, inside).encode().decode("latin-1")
    with pytest.raises(DownloadError):
        fetch(
            f"http://127.0.0.1:{redirecting.server_port}/x.mar",
            tmp_path,
            DownloadPolicy(EVERY_URL, [ip_network("127.0.0.1/32")]),
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://[", "http://[::1/x.mar", "http://]/x.mar", "HTTPS://[x]/x.mar"])
def test_what_is_no_url_is_the_mistake_of_who_sent_it(url: str, tmp_path: Path) -> None:
    """Registration answered 500."""
    with pytest.raises(DownloadError) as told:
        fetch(url, tmp_path, DownloadPolicy(EVERY_URL))
    assert told.value.status == 400
