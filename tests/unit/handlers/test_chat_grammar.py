"""handlers/chat: what grammars of tools accept in the formats of the models, and what they do not."""

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from tests.unit.handlers.conftest import HANDLERS, load_module

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("llguidance")
pytestmark = pytest.mark.torch

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
MARKS = ["[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"]
ONE = {
    "HERMES": '<tool_call>\n{"name": "f", "arguments": {"city": "P"}}\n</tool_call>',
    "LLAMA": '{"name": "f", "parameters": {"city": "P"}}',
    "MISTRAL": '[TOOL_CALLS][{"name": "f", "arguments": {"city": "P"}}]',
    "MISTRAL_ARGS": '[TOOL_CALLS]f[ARGS]{"city": "P"}',
}
TWO = {
    "HERMES": f"{ONE['HERMES']}\n{ONE['HERMES']}",
    "LLAMA": f"{ONE['LLAMA']}; {ONE['LLAMA']}",
    "MISTRAL": ONE["MISTRAL"].replace("}}]", '}}, {"name": "f", "arguments": {"city": "Q"}}]'),
    "MISTRAL_ARGS": ONE["MISTRAL_ARGS"] * 2,
}


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HANDLERS / "chat"))
        names = ("chat_grammar", "chat_tools", "chat_messages", "chat_requests", "chat_fields")
        yield {name: load_module(HANDLERS / "chat" / f"{name}.py") for name in names}
    for name in [name for name in sys.modules if name.startswith("chat_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tests.contracts.scripted_chat import byte_tokenizer

    return byte_tokenizer(MARKS)


@pytest.fixture(scope="module")
def grammars(modules: dict[str, ModuleType], tokenizer: Any) -> Any:
    return modules["chat_grammar"].Grammars(tokenizer, len(tokenizer), [tokenizer.eos_token_id])


def accepts(grammar: Any, tokenizer: Any, text: str) -> bool:
    """Return whether a text may come, and may end the answer."""
    for token in [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]:
        if grammar.is_over:
            return bool(token == tokenizer.eos_token_id)
        if not grammar.mask(torch.zeros(len(tokenizer)))[token].isfinite():
            return False
        grammar.add(token)
    return True


@pytest.mark.parametrize("format_", ONE)
def test_calls_fit_their_tools(modules: dict[str, ModuleType], grammars: Any, tokenizer: Any, format_: str) -> None:
    how = getattr(modules["chat_tools"], format_)
    tools = modules["chat_messages"].Tools([{"name": "f", "parameters": CITY}], frozenset("f"), frozenset("f"))

    def check(text: str, constraint: Any = None, **changed: Any) -> bool:
        return accepts(grammars.of_tools(tools._replace(**changed), how, constraint), tokenizer, text)

    schema = modules["chat_requests"].Constraint("json", {"type": "integer"}, "response_format")
    assert check(ONE[format_], is_required=True)
    assert check(ONE[format_])
    assert check(ONE[format_], schema)
    assert check(TWO[format_], is_required=True)
    assert check(TWO[format_])
    assert not check(TWO[format_], is_required=True, most=1)
    assert check("Hello there.")
    assert not check("Hello there.", is_required=True)
    assert check("42", schema)
    assert not check("Hello there.", schema)
    for wrong in (ONE[format_].replace("city", "town"), ONE[format_].replace('"P"', "5")):
        assert not check(wrong, is_required=True)
        assert not check(wrong)
