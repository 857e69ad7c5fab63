"""The handler for models that vLLM runs: OpenAI's API below the model's own path, under TorchServe's import path.

A request to ``/predictions/{model}/{version}/v1/…`` is answered by the application of vLLM's own OpenAI server, in this
process: completions, chat, embeddings, whatever the installed version has. Streams leave token by token, and a client
that leaves ends its generation.

With ``sequenceBatching`` there are OpenAI's Responses and Conversations as well: the server keeps the history in a
sequence and asks for a chat completion with all of it, of which the engine finds the beginning in its own cache. Any
other request carries its history, so its sequence ends with it. A response in the background that broke off continues
(`vllm_continuation`).
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ts.handler_utils.asgi import Application, answer
from ts.torch_handler.base_handler import BaseHandler
from ts.torch_handler.built_in_rows import row_value
from ts.torch_handler.vllm_continuation import continuing
from ts.torch_handler.vllm_server import open_application
from ts.utils.util import BadRequestError, PredictionException

#: The handler passes on only these paths: vLLM's server has others, for its operators.
_API = "v1/"
_CHAT = "v1/chat/completions"


class VLLMHandler(BaseHandler):
    """Answers requests with vLLM's OpenAI server; needs ``asyncCommunication: true`` in model-config.yaml."""

    def __init__(self) -> None:
        super().__init__()
        self.vllm_engine: Any = None  # an AsyncLLMEngine
        self.application: Application | None = None  # of vLLM's OpenAI server
        self.adapters: dict[str, str] = {}  # of LoRA, by name

    def initialize(self, ctx: Any) -> None:
        """Load the model. Raises as `open_application` does."""
        config = (ctx.model_yaml_config or {}).get("handler") or {}
        self.adapters = config.get("adapters") or {}
        opening = open_application(config, Path(ctx.system_properties["model_dir"]), ctx.model_name)
        self.vllm_engine, self.application = asyncio.get_event_loop().run_until_complete(opening)
        self.initialized = True

    async def handle(self, data: Any, context: Any) -> Any:
        started = time.perf_counter()
        prepared = await self.preprocess(data, context)
        output = await self.postprocess(await self.inference(prepared, context))
        if context.get_sequence_id(0):
            context.end_sequence(0)
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - started) * 1000, 2), None, "ms")
        return output

    async def preprocess(self, requests: Any, context: Any) -> Sequence[Any]:  # type: ignore[override]
        """Return the request's body: bytes, text, a JSON value, or None where it has none."""
        if len(requests) != 1:
            raise ValueError(f"vllm_handler takes one request at a time, got {len(requests)}: batchSize must be 1")
        return [row_value(requests[0])]

    async def inference(self, input_batch: Sequence[Any], context: Any) -> Sequence[Any]:
        """Have vLLM's application answer.

        Raises PredictionException: the path is not one of OpenAI's API (404), or the tokens of an earlier run are none
        of this model's (400).
        """
        assert self.application is not None, "the model is loaded"
        path = context.get_request_header(0, "url_path") or ""
        if not path.startswith(_API):
            raise PredictionException(f"Unknown API endpoint: {path}", 404)
        body = input_batch[0]
        tokens = self._committed(context) if path == _CHAT and isinstance(body, dict) else None
        if tokens is not None:  # vLLM ignores what its version does not know
            body = {**body, "return_token_ids": True}
        with continuing(tokens or ()):
            return [await answer(self.application, path, body, context)]

    def _committed(self, context: Any) -> list[int] | None:
        """Return the tokens that an earlier run of a generation in the background has committed.

        None if the request is no such generation. Raises BadRequestError: they are no tokens of this model.
        """
        committed: list[int] | None = context.row_values[0].get("committed_tokens")
        if not committed:
            return committed
        words = self.vllm_engine.model_config.get_vocab_size()
        if not isinstance(committed, list) or not all(type(each) is int and 0 <= each < words for each in committed):
            raise BadRequestError(f"committed_tokens has to be a list of tokens of this model: numbers below {words}.")
        return committed

    async def postprocess(self, inference_outputs: Sequence[Any]) -> Sequence[Any]:
        return inference_outputs
