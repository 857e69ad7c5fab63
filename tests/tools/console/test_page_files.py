"""Rules for the files of the pages: short, no foreign host, no markup from texts, no code that the policy forbids."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from torchserve_py.endpoints.page_files import PARTS
from torchserve_py.tools.console import console_endpoints
from torchserve_py.tools.docs_page import docs_endpoints

PAGE = Path(console_endpoints.__file__).parent / "page"
DOCS = Path(docs_endpoints.__file__).parent / "page"
OWN = [path for folder in (PAGE, PARTS, DOCS) for path in sorted(folder.iterdir()) if path.is_file()]
MOST_LINES = 300


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_a_file_of_a_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MOST_LINES
    hosts = set(re.findall(r"https?://[\w.-]+", text)) - {"http://www.w3.org"}  # a name space of SVG
    assert not hosts
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|\son\w+=|style="
    assert not re.search(forbidden, text)


def test_every_file_that_a_module_imports_is_served() -> None:
    files = console_endpoints.page_answers()
    for path in (*PAGE.glob("*.js"), *PARTS.glob("*.js")):
        for name in re.findall(r"""(?:from|import\()\s*"\./([^"]+)\"""", path.read_text(encoding="utf-8")):
            assert name in files, f"{path.name} imports {name}"


def test_the_library_comes_with_its_licence() -> None:
    assert "MIT" in (PAGE / "vendor" / "LICENSE.uPlot").read_text()


def test_control_characters_of_stored_texts_are_shown_as_escapes() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js")
    text = json.dumps("a\x1b[2J\u202eb\u2066\x9bc\td\ne")
    script = f"import({json.dumps((PARTS / 'dom.js').as_uri())}).then((dom) => console.log(dom.visible({text})))"
    command = [node, "--experimental-default-type=module", "--eval", script]
    said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout
    assert said == "a\\u001b[2J\\u202eb\\u2066\\u009bc\td\ne\n"
