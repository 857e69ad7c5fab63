"""The pages stay readable: few of them, few words, and short sentences. Code and tables have no sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_PAGES = 45
MOST_WORDS = 55_000
MOST_WORDS_OF_A_SENTENCE = 35
MEAN_WORDS_OF_A_SENTENCE = 15

_CODE = re.compile(r"^```.*?^```|^    .*?$", re.MULTILINE | re.DOTALL)
_TABLE = re.compile(r"^\|.*$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
_PARAGRAPHS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) |#)")
_MARKER = re.compile(r"^(?:[-*]|\d+\.) ")
_ENDS = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[])")


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page; the items of a list and what stands behind a colon are sentences, too."""
    prose = _LINK.sub(r"\1", _TABLE.sub("", _CODE.sub("", text)))
    for paragraph in _PARAGRAPHS.split(prose):
        if not paragraph.startswith("#"):
            yield from filter(None, _ENDS.split(_MARKER.sub("", " ".join(paragraph.split()))))


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    long = [each for each in sentences(page.read_text()) if len(each.split()) > MOST_WORDS_OF_A_SENTENCE]
    assert long == [], "split these sentences"


def test_the_sentences_of_all_pages_are_short() -> None:
    lengths = [len(each.split()) for page in pages() for each in sentences(page.read_text())]
    assert sum(lengths) / len(lengths) <= MEAN_WORDS_OF_A_SENTENCE


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_who_waits_for_a_server_sees_that_it_is_not_ready(page: Path) -> None:
    loops = re.findall(r"until curl .*", page.read_text())
    assert [each for each in loops if " -sf " not in each and "| grep" not in each] == [], "curl succeeds with a 503"


def test_there_are_few_pages() -> None:
    assert len(list((ROOT / "docs").rglob("*.md"))) <= MOST_PAGES, "merge pages, or cut one"


def words(text: str) -> int:
    """Return the number of words of a page, those of its code and tables included; bars and fences are none."""
    return sum(re.search(r"\w", each) is not None for each in text.split())


def test_there_are_few_words() -> None:
    assert sum(words(page.read_text()) for page in pages()) <= MOST_WORDS, "cut what another place says"


def test_what_counts_as_a_word() -> None:
    assert words("| one | 2 |\n|---|---|\n\n```\n$ three --four\n```\n") == 4


def test_what_counts_as_a_sentence() -> None:
    prose = "# A title\n\nOne two. Three [four](page.md):\n\n- five\n- six\n\n"
    text = f"{prose}| no | table |\n\n```\nno code\n```\n\n    no code\n"
    assert list(sentences(text)) == ["One two.", "Three four:", "five", "six"]
