"""Every example of the documentation does what the documentation says; see `tests.e2e.documents` for what is run."""

from pathlib import Path

import pytest
from tests.e2e import documents
from tests.e2e.running_server import ROOT
from tests.e2e.workplace import Workplace
from tests.programs import need_program

NEED_TORCH = {
    "docs/first-minute.md",
    "docs/gpu.md",
    "docs/handlers.md",
    "docs/recipes.md",
    "docs/llm.md",
    "docs/migration.md",
    "docs/state.md",
    "handlers/gru_session/README.md",
}

#: Run by tests/unit/handlers/test_morse.py, since its examples train a model for half a minute that this tests further.
RUN_ELSEWHERE = "handlers/morse/README.md"

#: The programs that a document starts, besides those that every machine has.
NEED_PROGRAMS = {
    "docs/recipes.md": ("sox",),
    "handlers/keypad/README.md": ("sox",),
    "handlers/transcribe/README.md": ("espeak-ng", "sox"),
}


def documents_with_examples() -> list[object]:
    """Return the documents as parameters of a test."""
    found: list[object] = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("handlers/*/README.md"))]:
        name = str(path.relative_to(ROOT))
        if name != RUN_ELSEWHERE and any(documents.is_run(block) for block in documents.blocks(path)):
            found.append(pytest.param(path, id=name, marks=[pytest.mark.torch] if name in NEED_TORCH else []))
    return found


@pytest.mark.parametrize("document", documents_with_examples())
def test_the_examples_of(document: Path, tmp_path: Path) -> None:
    for program in NEED_PROGRAMS.get(str(document.relative_to(ROOT)), ()):
        need_program(program)
    documents.run_all(document, tmp_path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```bash\nfalse\ntrue\n```\n", "exit code 1"),
        ("```bash\ncurl http://localhost:8080/ping\n```\n", "exit code 7"),
        ("```console\n$ echo one\ntwo\n```\n", "and not\ntwo"),
        ("```console\n$ printf 'b\\na\\n'\na\nb\n```\n", "and not\na\nb"),
    ],
)
def test_an_example_that_does_something_else_is_noticed(
    text: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PATIENCE", 0.1)
    document = tmp_path / "document.md"
    document.write_text(text)
    place = tmp_path / "place"
    place.mkdir()
    with Workplace(place) as workplace, pytest.raises(AssertionError, match=complaint):
        for block in documents.blocks(document):
            documents.run(block, workplace)
