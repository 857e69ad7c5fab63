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
from tests.e2e import documents
from tests.e2e.browser import Browser, chromium
from tests.e2e.running_server import DEADLINE, ROOT, eventually

from torchserve_py.base.settings.server_settings import sources
from torchserve_py.plugins import plugins

#: Attributes by which a browser fetches something while it shows a page.
FETCHED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
#: The languages of commands with what they print: ``console``, and ``shell-session``, which is not run.
TRANSCRIPTS = ("console", "shell")
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
    written = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in ROOT.glob("docs/**/*.md")}
    assert written <= {name for name, _ in pages(site)}
    index = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert written - {"index.html"} <= found
    text = " ".join(entry["text"] for entry in index["docs"])
    assert all(setting in text for setting in sources())
    opened = (site / "search" / "search_index.js").read_text()  # for a site that is opened from a folder
    assert json.loads(opened.removeprefix("var __index = ")) == index


def test_a_file_for_programs_names_every_page_and_what_it_is_about(site: Path) -> None:
    named = re.findall(r"^- \[(.+)\]\(([^)]+)\): \S.*[^.:]\.?$", (site / "llms.txt").read_text(), re.MULTILINE)
    assert all((site / place).is_file() for _, place in named)
    written = {str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in ROOT.glob("docs/**/*.md")}
    assert written <= {place for _, place in named}


@pytest.mark.parametrize("name", ["inference", "management", "metrics", "open-inference"])
def test_the_reference_has_every_operation_of_the_server(site: Path, name: str) -> None:
    document = json.loads((site / "api" / f"{name}.json").read_text())
    operations = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    shown = re.findall(r"<h2 [^>]*><code>([^<]+)</code>", (site / "api" / f"{name}.html").read_text())
    assert sorted(shown) == sorted(operations)
    assert len(shown) > 2


def test_the_reference_of_the_inference_api_begins_with_predictions(site: Path) -> None:
    shown = re.findall(r"<h2 [^>]*><code>([^<]+)</code>", (site / "api" / "inference.html").read_text())
    assert [each.partition(" ")[2] for each in shown].index("/predictions/{model_name}") == 0


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("configuration", [*sources()]),
        ("model-config", ["batchSize", "sequenceBatching", "store", "nproc-per-node"]),
        ("metrics", ["ts_queue_seconds", "Requests5XX", "ts_key_tokens_total"]),
        ("errors", ["no_worker", "outcome_unknown"]),
    ],
)
def test_what_begins_a_row_can_be_linked_to(site: Path, page: str, names: list[str]) -> None:
    anchors = {attributes.get("id") for _, attributes in Elements(site / f"{page}.html").found}
    assert set(names) - anchors == set()


def test_the_reference_has_the_help_of_every_command(site: Path) -> None:
    page = Elements(site / "api" / "commands.html")
    commands = {"torchserve-py", *(f"torchserve-py-{name}" for plugin in plugins() for name in plugin.commands)}
    assert commands <= {attributes.get("id") for tag, attributes in page.found if tag == "h2"}
    assert "--no-config-snapshots" in (site / "api" / "commands.html").read_text()


class Elements(HTMLParser):
    """The elements of a page, each with its attributes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))

    def values(self, tag: str, attribute: str) -> list[str]:
        return [attributes[attribute] for each, attributes in self.found if each == tag and attribute in attributes]


def test_the_home_page_shows_code_and_the_console_and_leads_on(site: Path) -> None:
    home = Elements(site / "index.html")
    first, *_ = documents.blocks(ROOT / "docs" / "index.md")
    assert first.language == "python"
    assert len(first.text.splitlines()) == 8, "a model has seven lines below the name of its file"
    assert "console-models.png" in home.values("img", "src")
    links = [each for each in home.values("a", "href") if not re.match(r"\w+:", each)]
    assert "first-minute.html" in links
    for address in [*links, *home.values("img", "src")]:
        name, _, anchor = address.partition("#")
        target = site / (name or "index.html")
        target = target / "index.html" if target.is_dir() else target
        assert target.is_file(), address
        if anchor:
            assert anchor in [attributes.get("id") for _, attributes in Elements(target).found], address


def test_transcripts_are_copied_as_commands(site: Path) -> None:
    for document in sorted(ROOT.glob("docs/**/*.md")):
        transcripts = [block.text for block in documents.blocks(document) if block.language in TRANSCRIPTS]
        expected = ["\n".join(each.text for each in documents.commands(text)) for text in transcripts]
        page = site / document.relative_to(ROOT / "docs").with_suffix(".html")
        assert Elements(page).values("code", "data-copy") == expected, document.name


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


def test_the_buttons_beside_code_copy_it(site: Path) -> None:
    with chromium() as browser:
        browser.get(f"file://{site}/index.html")
        browser.execute_script("addEventListener('copy', event => { window.copied = event.target.value })")
        buttons = eventually(
            lambda: browser.find_elements("css selector", "button[data-clipboard-target]"), "there are buttons"
        )
        copied = []
        for button in buttons:
            browser.execute_script("scrollTo(0, arguments[0].getBoundingClientRect().top - 300)", button)
            button.click()
            copied.append(browser.execute_script("return window.copied"))
    code, transcript = documents.blocks(ROOT / "docs" / "index.md")
    assert copied == [code.text.rstrip(), "\n".join(each.text for each in documents.commands(transcript.text))]
