"""Downloads into the model store, from a web server on the loopback."""

import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.core.archive.conftest import (
    ANY,
    CONTENT,
    LOOPBACK,
    Answer,
    WebServer,
    files_in,
    sends,
    sends_without_length,
)

from torchserve_py.core.archive import fetch as downloading
from torchserve_py.core.archive.cancellation import CANCELLED, Cancelled
from torchserve_py.core.archive.downloads import DownloadPolicy
from torchserve_py.core.archive.errors import ArchiveExists, ArchiveNotFound, DownloadError


def fetch(url: str, store: Path, allowed_urls: Sequence[re.Pattern[str]] = (), **more: Any) -> Path:
    return downloading.fetch(url, store, DownloadPolicy(allowed_urls, LOOPBACK), **more)


def redirects_to(url: str) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("location", url)
        request.end_headers()

    return answer


@pytest.mark.parametrize("answer", [sends(CONTENT), sends_without_length(CONTENT)])
def test_an_archive_is_downloaded_under_the_urls_last_component(
    answer: Answer, web: WebServer, model_store: Path
) -> None:
    web.answers["/a/x.mar?sig=1/2"] = answer
    path = fetch(f"{web.url}/a/x.mar?sig=1/2", model_store, allowed_urls=ANY)
    assert path == model_store / "x.mar"
    assert path.read_bytes() == CONTENT
    assert files_in(model_store) == ["x.mar"]


def test_a_file_url_is_copied(tmp_path: Path, model_store: Path) -> None:
    source = tmp_path / "with space.mar"
    source.write_bytes(b"PK\x03\x04" + CONTENT)
    path = fetch(source.as_uri(), model_store, allowed_urls=ANY)
    assert path.read_bytes() == b"PK\x03\x04" + CONTENT
    assert fetch(f"file://localhost{source.as_uri()[7:]}?2", tmp_path, allowed_urls=ANY).is_file()


@pytest.mark.parametrize("url", ["http://h.example/x.mar", "HTTPS://h.example/x.mar", "file:///etc/passwd"])
def test_nothing_is_downloaded_unless_it_is_allowed(url: str, model_store: Path) -> None:
    with pytest.raises(ArchiveNotFound) as caught:
        fetch(url, model_store)
    assert caught.value.message == f"Given URL {url} does not match any allowed URL(s)"
    assert "allowed_urls=" in caught.value.detail
    assert (caught.value.status, caught.value.error_type) == (404, "ModelNotFoundException")


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        (["https://h/.*"], True),
        (["https://other/.*", "https://h/.*"], True),
        (["https://h/"], False),
        (["h/x.mar"], False),
        ([], False),
    ],
)
def test_a_pattern_must_match_the_whole_url(patterns: list[str], allowed: bool, model_store: Path) -> None:
    (model_store / "x.mar").touch()
    with pytest.raises(ArchiveExists if allowed else ArchiveNotFound):
        fetch("https://h/x.mar", model_store, allowed_urls=[re.compile(pattern) for pattern in patterns])


def test_a_file_of_the_store_is_never_replaced(web: WebServer, model_store: Path) -> None:
    (model_store / "x.mar").write_text("mine")
    with pytest.raises(ArchiveExists) as caught:
        fetch(f"{web.url}/x.mar", model_store, allowed_urls=ANY)
    assert str(caught.value) == "Model file already exists x.mar"
    assert (caught.value.status, caught.value.error_type) == (500, "InternalServerException")


def test_a_file_that_appears_during_the_download_is_not_replaced(web: WebServer, model_store: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        (model_store / "x.mar").write_text("mine")
        sends(CONTENT)(request)

    web.answers["/x.mar"] = answer
    with pytest.raises(ArchiveExists):
        fetch(f"{web.url}/x.mar", model_store, allowed_urls=ANY)
    assert (model_store / "x.mar").read_text() == "mine"
    assert files_in(model_store) == ["x.mar"]


def assert_download_fails(url: str, model_store: Path, detail: str, **limits: float) -> None:
    with mock.patch.dict(vars(downloading), limits), pytest.raises(DownloadError, match=detail) as caught:
        fetch(url, model_store, allowed_urls=ANY)
    shown = re.sub("//[^/]*@", "//***@", url)  # a name and a password are not shown
    assert caught.value.message == f"Failed to download archive from: {shown}"
    assert (caught.value.status, caught.value.error_type) == (400, "DownloadArchiveException")
    assert files_in(model_store) == []


def test_a_server_error_is_told(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = lambda request: request.send_error(403)
    assert_download_fails(f"{web.url}/x.mar", model_store, "the server answered 403 Forbidden")


def test_a_server_that_is_not_there_is_told(model_store: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        assert_download_fails(f"http://127.0.0.1:{unheard.getsockname()[1]}/x.mar", model_store, "refused")


def test_a_download_cut_short_is_refused(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = sends(b"x" * 100, length=1000)
    assert_download_fails(f"{web.url}/x.mar", model_store, "the connection ended early, after 100 bytes")


@pytest.mark.parametrize("answer", [sends(CONTENT), sends_without_length(CONTENT)])
def test_a_download_over_the_limit_is_refused(answer: Answer, web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = answer
    assert_download_fails(f"{web.url}/x.mar", model_store, "limit", MAX_BYTES=100_000)


def test_a_silent_server_is_given_up(web: WebServer, model_store: Path) -> None:
    done = threading.Event()

    def says_nothing(_: BaseHTTPRequestHandler) -> None:
        done.wait(30)

    web.answers["/x.mar"] = says_nothing
    try:
        assert_download_fails(f"{web.url}/x.mar", model_store, "timed out", IDLE_SECONDS=0.05)
    finally:
        done.set()


def test_a_server_that_only_says_that_it_goes_on_is_given_up(web: WebServer, model_store: Path) -> None:
    def goes_on(request: BaseHTTPRequestHandler) -> None:
        with suppress(OSError):
            while True:
                request.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    web.answers["/x.mar"] = goes_on
    assert_download_fails(f"{web.url}/x.mar", model_store, "timed out", IDLE_SECONDS=0.1)


def test_a_download_that_takes_too_long_is_given_up(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = sends(CONTENT)
    assert_download_fails(f"{web.url}/x.mar", model_store, "took longer", TOTAL_SECONDS=0)


@pytest.mark.parametrize(
    "end", ["", "/", "/models/", "/.hidden.mar", "/" + "a" * 5000, "]/x.mar", "/a%2F..%5Cb\\c.mar"]
)
def test_a_url_without_a_usable_file_name_is_refused(end: str, model_store: Path) -> None:
    with pytest.raises((DownloadError, ArchiveNotFound)):
        fetch(f"https://h.example{end}", model_store, allowed_urls=ANY)
    assert files_in(model_store) == []


def test_dots_in_a_url_are_refused_before_anything_is_asked(web: WebServer, model_store: Path) -> None:
    url = f"{web.url}/a/../x.mar"
    with pytest.raises(ArchiveNotFound) as caught:
        fetch(url, model_store, allowed_urls=ANY)
    assert str(caught.value) == f"Relative path is not allowed in url: {url}"


def test_a_redirect_is_followed_when_its_target_is_allowed(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = redirects_to(f"{web.url}/elsewhere")
    web.answers["/elsewhere"] = sends(CONTENT)
    assert fetch(f"{web.url}/x.mar", model_store, allowed_urls=ANY).read_bytes() == CONTENT


def test_a_redirect_to_what_is_not_allowed_is_refused(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = redirects_to(f"{web.url}/private")
    web.answers["/private"] = sends(CONTENT)
    allowed = [re.compile(re.escape(web.url) + r"/.*[.]mar")]
    with pytest.raises(ArchiveNotFound, match=r"Given URL \S+/private does not match any allowed"):
        fetch(f"{web.url}/x.mar", model_store, allowed_urls=allowed)
    assert files_in(model_store) == []


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://h.example/x.mar"])
def test_a_redirect_to_another_protocol_is_refused(target: str, web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = redirects_to(target)
    assert_download_fails(f"{web.url}/x.mar", model_store, "redirect|http")


def test_a_redirect_in_circles_ends(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = redirects_to(f"{web.url}/x.mar")
    assert_download_fails(f"{web.url}/x.mar", model_store, "infinite loop")


@pytest.mark.parametrize("url", ["file://other.example/x.mar", "file:///gone/x.mar"])
def test_a_file_url_must_name_a_file_of_this_machine(url: str, model_store: Path) -> None:
    assert_download_fails(url, model_store, "file")


@pytest.mark.parametrize("algorithm", ["sha256", "SHA256", "sha384", "sha512"])
def test_the_checksum_of_a_url_is_checked(algorithm: str, web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = sends(CONTENT)
    allowed = [re.compile(re.escape(web.url) + r"/.*[.]mar")]
    digits = hashlib.new(algorithm.lower(), CONTENT).hexdigest()
    assert fetch(f"{web.url}/x.mar#{algorithm}={digits}", model_store, allowed_urls=allowed).read_bytes() == CONTENT


def test_another_content_than_the_checksum_asks_for_is_refused(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = sends(CONTENT)
    expected, found = "0" * 64, hashlib.sha256(CONTENT).hexdigest()
    detail = f"the sha256 of what came is {found}, but the URL asks for {expected}"
    assert_download_fails(f"{web.url}/x.mar#sha256={expected}", model_store, detail)


@pytest.mark.parametrize(
    ("fragment", "detail"),
    [
        ("md5=" + "0" * 32, "#md5 is no checksum that is known; use one of sha256, sha384, sha512"),
        ("sha256=12", "#sha256= must be followed by 64 hexadecimal digits"),
        ("sha256=" + "g" * 64, "64 hexadecimal digits"),
    ],
)
def test_a_checksum_that_cannot_be_one_is_refused(fragment: str, detail: str, model_store: Path) -> None:
    assert_download_fails(f"https://h.example/x.mar#{fragment}", model_store, detail)


def test_a_fragment_that_is_no_checksum_means_nothing(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = sends(CONTENT)
    assert fetch(f"{web.url}/x.mar#part", model_store, allowed_urls=ANY).read_bytes() == CONTENT


def test_a_download_can_be_given_up(web: WebServer, model_store: Path) -> None:
    cancelled, done = threading.Event(), threading.Event()

    def never_ends(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while not done.is_set():
            request.wfile.write(b"x" * 1000)
            if any(model_store.iterdir()):
                cancelled.set()

    web.answers["/x.mar"] = never_ends
    token = CANCELLED.set(cancelled)
    try:
        with pytest.raises(Cancelled):
            fetch(f"{web.url}/x.mar", model_store, allowed_urls=ANY)
    finally:
        CANCELLED.reset(token)
        done.set()
    assert files_in(model_store) == []


def test_what_a_killed_server_left_is_removed_but_not_a_download_of_another_server(
    web: WebServer, model_store: Path
) -> None:
    old, new, users = model_store / f".{'a' * 32}.part", model_store / f".{'b' * 32}.part", model_store / ".my.part"
    for file in (old, new, users):
        file.touch()
    for file in (old, users):
        os.utime(file, (time.time() - 4 * 3600,) * 2)
    web.answers["/x.mar"] = sends(CONTENT)
    fetch(f"{web.url}/x.mar", model_store, allowed_urls=ANY)
    assert files_in(model_store) == sorted([new.name, users.name, "x.mar"])


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0x7f.1", "2130706433", "0", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_an_address_that_only_this_machine_reaches_is_refused_unless_its_network_is_allowed(
    host: str, web: WebServer, model_store: Path
) -> None:
    asked: list[str] = []
    web.answers["/x.mar"] = lambda request: asked.append(request.path)
    with pytest.raises(DownloadError, match=r"no address of the public internet.*allowed_url_networks="):
        downloading.fetch(f"http://{host}:{web.server.server_port}/x.mar", model_store, DownloadPolicy(ANY))
    assert asked == []
    assert files_in(model_store) == []


def test_the_addresses_of_a_redirect_are_checked_again(web: WebServer, model_store: Path) -> None:
    web.answers["/x.mar"] = redirects_to("http://169.254.169.254/latest/meta-data/x.mar")
    assert_download_fails(f"{web.url}/x.mar", model_store, "169.254.169.254 is no address of the public internet")


def answering(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let lookups of names answer with these addresses, one list after another; return the list of what was asked."""
    asked: list[str] = []
    left = list(answers)

    def lookup(host: str, port: int | None, *more: object, flags: int = 0, **further: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "it is a name")
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in left.pop(0)]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return asked


def test_a_name_is_refused_if_any_of_its_addresses_is(
    web: WebServer, model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    web.answers["/x.mar"] = lambda request: asked.append(request.path)
    answering(monkeypatch, ["93.184.215.14", "127.0.0.1"])
    with pytest.raises(DownloadError, match=r"h[.]example: 127[.]0[.]0[.]1 is no address of the public internet"):
        downloading.fetch(f"http://h.example:{web.server.server_port}/x.mar", model_store, DownloadPolicy(ANY))
    assert asked == []


def test_a_connection_goes_to_the_address_that_was_looked_at(
    web: WebServer, model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that stands for another address at its second lookup is looked up once."""
    web.answers["/x.mar"] = sends(CONTENT)
    lookups = answering(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])
    fetch(f"http://h.example:{web.server.server_port}/x.mar", model_store, allowed_urls=ANY)
    assert lookups == ["h.example"]


def test_what_is_sent_in_chunks_and_ends_early_is_refused(web: WebServer, model_store: Path) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.protocol_version = "HTTP/1.1"
        request.send_response(200)
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        request.wfile.write(b"5\r\nhello\r\n")
        request.close_connection = True

    web.answers["/x.mar"] = answer
    assert_download_fails(f"{web.url}/x.mar", model_store, "the connection ended early, after 5 bytes")


def test_a_proxy_is_used_but_not_for_an_address_that_is_refused(
    web: WebServer, model_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    web.answers["http://h.example/x.mar"] = sends(CONTENT)
    assert downloading.fetch("http://h.example/x.mar", model_store, DownloadPolicy(ANY)).read_bytes() == CONTENT
    web.answers["http://10.0.0.1/y.mar"] = sends(CONTENT)
    with pytest.raises(DownloadError, match=r"10[.]0[.]0[.]1 is no address of the public internet"):
        downloading.fetch("http://10.0.0.1/y.mar", model_store, DownloadPolicy(ANY))


@pytest.mark.parametrize("url", ["http://user:secret@127.0.0.1/x.mar", "https://h.example@127.0.0.1/x.mar"])
def test_a_url_with_credentials_is_refused(url: str, model_store: Path) -> None:
    assert_download_fails(url, model_store, "must not hold a user name or a password")


def test_what_files_there_are_is_not_told(tmp_path: Path, model_store: Path) -> None:
    there = tmp_path / "there"
    there.write_text("root:x:0:0")
    told = []
    for path in (there, tmp_path / "gone", tmp_path):
        with pytest.raises(DownloadError) as caught:
            fetch(path.as_uri(), model_store, allowed_urls=ANY)
        told.append((caught.value.status, str(caught.value).replace(str(path), "PATH")))
    assert len(set(told)) == 1
    assert "there is no archive PATH" in told[0][1]
