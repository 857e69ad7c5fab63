"""What vllm_handler asks vLLM for when a generation in the background may have to continue."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.handlers.conftest import FakeContext

from ts.jobs.errors import BadRequestError

vllm_handler = pytest.importorskip("ts.torch_handler.vllm_handler")
pytestmark = pytest.mark.torch
CHAT = "v1/chat/completions"
BODY = {"model": "mine", "messages": []}


async def echo(scope: Any, receive: Any, send: Any) -> None:
    body = (await receive())["body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def asked(path: str, row: dict[str, Any]) -> Any:
    """Return the body that vLLM gets for a row."""
    handler = vllm_handler.VLLMHandler()
    handler.application = echo
    handler.vllm_engine = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 10))
    context = FakeContext({})
    context.next_batch([("a", {"url_path": path})])
    context.row_values = [row]
    (answer,) = await handler.inference(await handler.preprocess([row], context), context)
    return json.loads(answer)


async def test_only_generations_in_the_background_send_their_tokens() -> None:
    for tokens in ([], [1, 9]):
        assert await asked(CHAT, {"body": BODY, "committed_tokens": tokens}) == BODY | {"return_token_ids": True}
    assert await asked(CHAT, {"body": BODY}) == BODY
    assert await asked("v1/completions", {"body": BODY, "committed_tokens": [1]}) == BODY


@pytest.mark.parametrize("wrong", [[-1], [10], ["a"], [True], "text"])
async def test_what_is_no_token_is_refused(wrong: Any) -> None:
    with pytest.raises(BadRequestError, match="committed_tokens has to be a list of tokens of this model"):
        await asked(CHAT, {"body": BODY, "committed_tokens": wrong})
