"""Rules for the files of the page: short, no foreign host, no markup from texts, no code that the policy forbids."""

import re
from pathlib import Path

import pytest

from torchserve_py.features.console import console_door

PAGE = Path(console_door.__file__).parent / "page"
OWN = [path for path in sorted(PAGE.iterdir()) if path.is_file()]
MOST_LINES = 300


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_file_of_the_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    hosts = set(re.findall(r"https?://[\w.-]+", text)) - {"http://www.w3.org"}  # a name space of SVG
    assert not hosts
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\son\w+=|style="
    assert not re.search(forbidden, text)


def test_every_file_that_a_module_imports_is_served() -> None:
    files = console_door.page_files()
    for path in PAGE.glob("*.js"):
        for name in re.findall(r"""(?:from|import\()\s*"\./([^"]+)\"""", path.read_text(encoding="utf-8")):
            assert name in files, f"{path.name} imports {name}"


def test_the_library_comes_with_its_licence() -> None:
    assert "MIT" in (PAGE / "vendor" / "LICENSE.uPlot").read_text()
