"""Stands in for vLLM where its engine cannot run: the names that its own server starts with, an engine of echoes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.10.2"


class AsyncEngineArgs:
    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @classmethod
    def from_cli_args(cls, args: Any) -> AsyncEngineArgs:
        return cls(vars(args))


class AsyncLLMEngine:
    """Says the words of a prompt again, one at a time; after the word ``wait`` it never comes to an end."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=values["max_model_len"]))

    @classmethod
    def from_engine_args(cls, args: AsyncEngineArgs) -> AsyncLLMEngine:
        return cls(args.values)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    async def generate(self, prompt: str, request_id: str) -> AsyncIterator[str]:
        try:
            for word in prompt.split():
                yield f"{word} "
                await (asyncio.get_running_loop().create_future() if word == "wait" else asyncio.sleep(0))
        except asyncio.CancelledError:
            Path(os.environ["STAND_IN_VLLM_ABORTED"]).write_text(request_id)
            raise
