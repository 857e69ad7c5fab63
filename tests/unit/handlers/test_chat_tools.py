"""handlers/chat: tool calls that are found in a model's text, however it is cut into parts."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.conftest import HANDLERS, load_module

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def tools() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        yield load_module(HANDLERS / "chat" / "chat_tools.py")
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]


def read(tools: ModuleType, format_: str, text: str, size: int, most: int | None = None) -> Any:
    """Return the text and the calls of an answer that comes in parts of a size."""
    reader = tools.CallReader(getattr(tools, format_), most)
    pieces = [piece for at in range(0, len(text), size) for piece in reader.add(text[at : at + size])]
    content, calls = "", {}
    for piece in [*pieces, *reader.end()]:
        if isinstance(piece, str):
            content += piece
        else:
            assert (piece.name is None) == (piece.place in calls)  # the first part of a call, and only that, has a name
            name, arguments = calls.get(piece.place, (piece.name, ""))
            calls[piece.place] = (name, arguments + piece.arguments)
    return content, list(calls.values())


CUT = '<tool_call>{"name": "f", "arguments": {"a": "b'
TWO = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g"}\n</tool_call>'


@pytest.mark.parametrize(
    ("format_", "text", "content", "calls"),
    [
        ("HERMES", f"Let me see. {TWO}", "Let me see. ", [("f", '{"a": 1}'), ("g", "{}")]),
        ("HERMES", '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call> so', "so", [("f", '{"a": 1}')]),
        ("HERMES", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        (
            "HERMES",
            '<tool_call>{"name": "f", "arguments": {"a": "</tool_call>}\\""}}',
            "",
            [("f", '{"a": "</tool_call>}\\""}')],
        ),
        ("HERMES", CUT, "", [("f", '{"a": "b')]),
        ("HERMES", "a < b <tool_ca", "a < b <tool_ca", []),
        ("HERMES", "<tool_call>oops</tool_call>", "oops</tool_call>", []),
        ("HERMES", '<tool_call>{"colour": 1}', '{"colour": 1}', []),
        ("HERMES", '<tool_call>{"name": "f", "argu', '{"name": "f", "argu', []),
        (
            "LLAMA",
            '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {"b": "}"}}',
            "",
            [("f", '{"a": 1}'), ("g", '{"b": "}"}')],
        ),
        ("LLAMA", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", [("f", "{}")]),
        ("LLAMA", '{"answer": [1, 2]}', '{"answer": [1, 2]}', []),
        ("LLAMA", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
        ("LLAMA", 'Hello {"name": "f"}', 'Hello {"name": "f"}', []),
        (
            "MISTRAL",
            '[TOOL_CALLS] [{"name": "f", "arguments": {"l": [1]}}, {"name": "g", "arguments": {}}]',
            "",
            [("f", '{"l": [1]}'), ("g", "{}")],
        ),
        ("MISTRAL", "a [list]", "a [list]", []),
        (
            "MISTRAL_ARGS",
            '[TOOL_CALLS]f[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]g[CALL_ID]a1b2c3d4e[ARGS]{}',
            "",
            [("f", '{"a": {"b": "}"}}'), ("g", "{}")],
        ),
    ],
)
def test_calls_are_found(
    tools: ModuleType, format_: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    for size in (1, 2, 3, 7, 1000):
        assert read(tools, format_, text, size) == (content, calls), size


def test_the_first_call_alone(tools: ModuleType) -> None:
    assert read(tools, "HERMES", TWO, 3, most=1) == ("", [("f", '{"a": 1}')])


def test_the_arguments_come_as_they_are_generated(tools: ModuleType) -> None:
    reader = tools.CallReader(tools.HERMES)
    for char in CUT[:-1]:
        reader.add(char)
    assert reader.add("x") == [tools.CallPiece(0, None, "x")]


@pytest.mark.parametrize(
    ("template", "format_"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "HERMES"),
        ("{{ tools }}[TOOL_CALLS]", "MISTRAL"),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "MISTRAL_ARGS"),
        ('{{ tools }}{"name": "x", "parameters": {}}', "LLAMA"),
        ("{{ tools }}<tool_call><function=x>", None),
        ("{{ messages }}", None),
    ],
)
def test_the_template_shows_the_format(tools: ModuleType, template: str, format_: str | None) -> None:
    assert tools.format_of(template) == (format_ and getattr(tools, format_))
