"""The application of the stand-in's OpenAI server, with the parameters that these functions have in vLLM 0.10."""

import json
from argparse import Namespace
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse


def build_app(args: Namespace) -> FastAPI:
    app = FastAPI()
    app.add_api_route("/v1/models", _models, methods=["GET"])
    app.add_api_route("/v1/completions", _completions, methods=["POST"])
    app.add_api_route("/v1/chat/completions", _chat_completions, methods=["POST"])
    return app


async def init_app_state(engine_client: Any, vllm_config: Any, state: Any, args: Namespace) -> None:
    assert vllm_config is engine_client.vllm_config
    state.engine_client = engine_client
    state.args = args
    state.names = args.served_model_name + [each.partition("=")[0] for each in args.lora_modules or ()]


async def _models(request: Request) -> Any:
    state = request.app.state
    data = [{"id": name, "object": "model", "created": 1, "owned_by": "vllm"} for name in state.names]
    return {"object": "list", "data": [{**each, "options": _options(state)} for each in data]}


def _options(state: Any) -> dict[str, Any]:
    return {key: value for key, value in vars(state.args).items() if value is not None}


async def _completions(request: Request) -> Response:
    def choice(text: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "finish_reason": None, "logprobs": None}

    order = await request.json()
    return await _answer(request, order, order["prompt"], "text_completion", choice, choice)


async def _chat_completions(request: Request) -> Response:
    def choice(text: str) -> dict[str, Any]:
        return {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}

    def part(text: str) -> dict[str, Any]:
        return {"index": 0, "delta": {"content": text}, "finish_reason": None}

    order = await request.json()
    prompt = " ".join(each["content"] for each in order["messages"])
    return await _answer(request, order, prompt, "chat.completion", choice, part)


async def _answer(request: Request, order: Any, prompt: str, kind: str, choice: Any, part: Any) -> Response:
    state = request.app.state
    if order["model"] not in state.names:
        message = f"The model `{order['model']}` does not exist."
        return JSONResponse({"error": {"message": message, "type": "NotFoundError", "code": 404}}, status_code=404)
    request_id = request.headers["x-request-id"]
    head = {"id": request_id, "object": kind, "created": 1, "model": order["model"]}
    words = state.engine_client.generate(prompt, request_id)
    if not order.get("stream"):
        text = "".join([word async for word in words])
        return JSONResponse({**head, "choices": [choice(text)]})

    async def events() -> AsyncIterator[str]:
        async for word in words:
            yield f"data: {json.dumps({**head, 'object': f'{kind}.chunk', 'choices': [part(word)]})}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")
