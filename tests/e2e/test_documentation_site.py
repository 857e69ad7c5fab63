"""The documentation site: built without a warning, complete, and shown without any other host."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import pytest
from tests.e2e.browser import Browser, chromium
from tests.e2e.running_server import DEADLINE, ROOT, eventually

from torchserve_py.settings.server_settings import sources

#: Attributes by which a browser fetches something while it shows a page.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
#: Words that people look for without knowing ours, and a page that they should find.
SEARCHED = {"authentication": "Keys", "swagger": "The first minute", "timeout": "Limits and timeouts"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The branch with the versions of the site, as `mike` leaves it; made in a repository beside the checkout's."""
    repository, folder = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("published")
    names = ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL")
    environment = {
        **os.environ,
        **dict.fromkeys(names, "test"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "GIT_DIR": str(repository / ".git"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "frontend"), str(ROOT / "backend")]),
        "NO_MKDOCS_2_WARNING": "1",
        "SITE_DIR": str(repository / "site"),
    }

    def run(*command: str) -> bytes:
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=DEADLINE, check=False)
        assert ran.returncode == 0, (ran.stdout + ran.stderr).decode()
        return ran.stdout

    run("git", "init", "--quiet")
    run("git", "commit", "--quiet", "--allow-empty", "--message", "A commit that the site is made of")
    run("mike", "deploy", "--branch", "site", "0.1", "latest")
    with tarfile.open(fileobj=BytesIO(run("git", "archive", "site"))) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def site(published: Path) -> Path:
    """One version of the site."""
    return published / "0.1"


def pages(site: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(site.rglob("*.html")):
        yield str(path.relative_to(site)), path.read_text()


def test_versions_stand_beside_each_other(published: Path) -> None:
    (version,) = json.loads((published / "versions.json").read_text())
    assert (version["version"], version["aliases"]) == ("0.1", ["latest"])
    assert (published / "latest").exists()


def test_a_page_fetches_nothing_from_another_host(site: Path) -> None:
    class Fetches(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            address = dict(attrs).get(FETCHED.get(tag, ""))
            assert address is None or not re.match(r"(\w+:)?//", address), f"{name}: <{tag}> fetches {address}"

    for name, text in pages(site):
        Fetches().feed(text)
        assert 'class="mermaid"' not in text, f"{name}: the theme loads mermaid from a host of its own"
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(\w+:)?//", style.read_text()), style.name


def test_every_document_is_a_page_that_the_search_finds(site: Path) -> None:
    documents = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in ROOT.glob("docs/**/*.md")}
    assert documents <= {name for name, _ in pages(site)}
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert documents - {"index.html"} <= found
    text = " ".join(entry["text"] for entry in index["docs"])
    assert all(setting in text for setting in sources())
    opened = (site / "search" / "search_index.js").read_text()  # for a site that is opened from a folder
    assert json.loads(opened.removeprefix("var __index = ")) == index


@pytest.mark.parametrize("name", ["inference", "management", "metrics", "open-inference"])
def test_the_reference_has_every_operation_of_the_server(site: Path, name: str) -> None:
    document = json.loads((site / "api" / f"{name}.json").read_text())
    operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    shown = re.findall(r"<h2 [^>]*><code>([^<]+)</code>", (site / "api" / f"{name}.html").read_text())
    assert shown == operations
    assert len(shown) > 2


def test_files_of_the_repository_that_pages_link_to_are_pages(site: Path) -> None:
    assert "docker build" in (site / "source" / "deploy" / "Dockerfile.html").read_text()
    assert "handlers/durable" in (site / "source" / "handlers" / "durable" / "index.html").read_text()
    operations = (site / "operations.html").read_text()
    assert 'href="source/deploy/Dockerfile.html"' in operations


def _is_listed(browser: Browser, page: str) -> bool:
    return page in browser.find_element("css selector", ".md-search-result").text


def test_search_works_from_a_server_and_from_a_folder(published: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(published))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as browser:
        Thread(target=server.serve_forever, daemon=True).start()
        own = f"http://127.0.0.1:{server.server_address[1]}"
        for address in (f"{own}/latest/index.html", f"file://{published}/0.1/index.html"):
            browser.get(address)
            box = browser.find_element("css selector", "input.md-search__input")
            box.click()
            box.send_keys("drain_timeout")
            found = f"{address} finds the page about settings"
            eventually(partial(_is_listed, browser, "Configuration"), found)
            fetched = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
            assert all(each.startswith((own, "file:")) for each in fetched)
            for word, page in SEARCHED.items():
                box.clear()
                box.send_keys(word)
                eventually(partial(_is_listed, browser, page), f"{address} finds {page} for {word}")
        server.shutdown()
