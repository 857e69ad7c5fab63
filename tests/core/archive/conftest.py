"""A small model to pack, an archiver that packs it, and a web server on the loopback."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from torchserve_py.archives.archiver.pack import PackOptions, pack

Pack = Callable[..., Path]
Answer = Callable[[BaseHTTPRequestHandler], None]

LOOPBACK = (ip_network("127.0.0.0/8"),)
ANY = [re.compile("file://.*|http(s)?://.*", re.IGNORECASE)]
CONTENT = bytes(range(256)) * 5000


def sends(content: bytes, *, length: int | None = None) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("content-length", str(len(content) if length is None else length))
        request.end_headers()
        request.wfile.write(content)

    return answer


def sends_without_length(content: bytes) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(content)

    return answer


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """A folder with a handler, a configuration, a requirements file and weights."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "my_handler.py").write_text("def handle(data, context):\n    return data\n")
    (folder / "model-config.yaml").write_text("batchSize: 2\n")
    (folder / "requirements.txt").write_text("numpy\n")
    (folder / "weights.pt").write_bytes(bytes(range(256)) * 16)
    return folder


@pytest.fixture
def model_store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    return folder


@pytest.fixture
def temp_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "temp"
    folder.mkdir()
    return folder


def pack_into(model_store: Path, sources: Path, **options: Any) -> Path:
    given = {"model_name": "noop", "handler": str(sources / "my_handler.py"), "version": "1.0"}
    return pack(PackOptions(**{**given, "export_path": str(model_store), **options}))


@pytest.fixture
def pack_model(model_store: Path, sources: Path) -> Pack:
    """Pack the model in `sources` into the model store: `pack_model(archive_format="tgz")`."""
    return partial(pack_into, model_store, sources)


class WebServer:
    """Serves on 127.0.0.1 what `answers` says: a path and the function that answers it."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}
        answers = self.answers

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(ConnectionError):  # a client that gives up is what some tests are about
                    answers[self.path](self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    web = WebServer()
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield web
    web.server.shutdown()
    web.server.server_close()
    thread.join(timeout=10)
