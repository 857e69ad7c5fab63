"""Has vLLM make chat completions, and continue each from some of its tokens: a program for vLLM's interpreter.

    python continued_generations.py CONFIG

CONFIG is the ``handler`` map of a model-config.yaml, as JSON. Each line of the input is ``[body, every, tokens]``: the
request is continued from these tokens; if there are none, from every so many of its own, and from all. Each line of the
output has the streams by how many tokens they continue from; 0 is the whole generation.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx

from ts.torch_handler.vllm_continuation import continuing
from ts.torch_handler.vllm_server import open_application


async def streams_of(client: httpx.AsyncClient, body: dict[str, Any], every: int, tokens: list[int]) -> dict[int, str]:
    async def stream(tokens: list[int]) -> str:
        with continuing(tokens):
            answer = await client.post("/v1/chat/completions", json=body)
            return answer.text

    if tokens:
        return {len(tokens): await stream(tokens)}
    whole = await stream([])
    chunks = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: {")]
    tokens = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
    places = [*range(1, len(tokens), every), len(tokens)]
    return {0: whole} | {place: await stream(tokens[:place]) for place in places}


async def main(config: dict[str, Any]) -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what vLLM and its processes log
    engine, application = await open_application(config, Path(), "mine")
    transport = httpx.ASGITransport(application)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=transport, base_url="http://host", timeout=None) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await streams_of(client, *json.loads(line))), file=output, flush=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
