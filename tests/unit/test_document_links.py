"""The README and the documents lead where they say."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: Made by `benchmarks/compare.py`, so that a checkout need not have them.
GENERATED = {ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.svg"}

#: The groups of the site's navigation, and those of its guides: what people want to do.
GROUPS = ["Home", "Get started", "Tutorials", "Guides", "Reference", "Explanation", "Contribute"]
GUIDES = ["Build", "Stateful", "Call", "Deploy", "Operate", "Migrate"]

_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_IMAGE = re.compile(r"!\[[^]]*\]\([^)]+\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def documents() -> list[Path]:
    return sorted(
        {*ROOT.glob("*.md"), *(page for room in ("docs", "handlers") for page in (ROOT / room).rglob("*.md"))}
    )


def anchors(document: Path) -> set[str]:
    """The anchors that headings get where the documents are shown."""
    headings = _HEADING.findall(_CODE.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", document.read_text())):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if target in GENERATED:
            continue
        assert target.exists(), f"{document.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{document.name}: {link}"


def test_the_home_of_the_documents_lists_every_page() -> None:
    linked = set(_LINK.findall((ROOT / "docs" / "index.md").read_text()))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - linked - {"index.md"} == set()


def test_the_readme_is_short_and_its_figures_are_those_of_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(_LINK.findall(_IMAGE.sub("", readme))) <= 8
    figures = re.findall(r"[\d.,]+ (?:steps/s|req/s|ms|MB)\b", readme.partition("## How fast")[2])
    assert len(figures) == 6
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [each for each in figures if f"| {each} (" not in measured] == []


def test_the_navigation_of_the_site_has_every_page() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    named = re.findall(r"([\w./-]+\.md)$", navigation, re.MULTILINE)
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert pages - set(named) == set(), "mkdocs.yml has to say where these pages stand"
    assert len(set(named)) == len(named)


def test_the_navigation_of_the_site_has_the_groups_that_readers_need() -> None:
    _, _, navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")
    groups = re.findall(r"^  - ([^:]+):(.*)$", navigation, re.MULTILINE)
    assert [name for name, _ in groups] == GROUPS
    assert [page for _, page in groups if page] == [" index.md"], "all but the first have pages below them"
    guides = navigation.partition("  - Guides:\n")[2].partition("\n  - ")[0]
    assert re.findall(r"^      - ([^:]+):$", guides, re.MULTILINE) == GUIDES


def test_the_reference_of_the_api_begins_with_predictions() -> None:
    first, *_ = re.findall(r"^## (.+)$", (ROOT / "docs" / "rest-api.md").read_text(), re.MULTILINE)
    assert first == "Predictions"


def test_what_is_to_be_copied_has_no_prompt() -> None:
    for document in documents():
        for language, text in re.findall(
            r"^```(\w*)[^\n]*\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL
        ):
            if language not in ("console", "shell"):  # whose prompts are left out by the button that copies
                assert not re.search(r"^\$ ", text, re.MULTILINE), f"{document.name}: {text}"


def test_the_wings_of_the_architecture_have_the_folders_and_files_that_it_names() -> None:
    ends = [ROOT / "frontend" / "torchserve_py", ROOT / "backend" / "ts"]
    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Wings")[2].partition("Above the wings")[0]
    for wing, folders, names in re.findall(r"^\| `(\w+)/` \| (.*) \| (.*) \|$", table, re.MULTILINE):
        places = [end / wing for end in ends if (end / wing).is_dir()]
        there = {each.parent.name for place in places for each in place.glob("*/__init__.py")}
        assert set(re.findall(r"`(\w+)/`", folders)) == there, wing
        for name in re.findall(r"`(\w+\.\w+)`", names):
            assert any(list(place.rglob(name)) for place in places), f"{wing}: {name}"


def test_other_folders_of_the_architecture_have_the_files_that_it_names() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text().partition("Above the wings")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w./]+)/`.* \| (.*)\|$", table, re.MULTILINE)
    assert len(rows) > 7
    for folder, names in rows:
        assert (ROOT / folder).is_dir(), f"there is no folder {folder}"
        for name in re.findall(r"`([\w./]+)`", names):
            assert [*ROOT.glob(name), *(ROOT / folder).rglob(name)], f"{folder} has no {name}"
