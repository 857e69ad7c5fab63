"""Models with annotations."""

from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Union

from pydantic import BaseModel


class Prompt(BaseModel):
    prompt: str


class Completion(BaseModel):
    text: str


class Lists(BaseModel):
    a: int
    b: list[int]


class Typed:
    def predict(self, inputs: Prompt) -> Completion:
        return Completion(text=inputs.prompt * 2)


class TwoFields:
    def predict(self, inputs: Lists):
        return inputs


class Text:
    def predict(self, inputs: str) -> str:
        return inputs


class Stream:
    def predict(self, inputs: Prompt) -> Generator[str, None, None]:
        yield inputs.prompt


class Waiting:
    async def predict(self, inputs: Prompt) -> Awaitable[Completion]:
        return Completion(text=inputs.prompt)


class EitherSync:
    def predict(self, inputs: Prompt) -> Union[Completion, Generator[str, None, None]]:  # noqa: UP007
        return Completion(text=inputs.prompt)


class EitherAsync:
    async def predict(self, inputs: Prompt) -> Union[Awaitable[Completion], AsyncGenerator[str, None]]:  # noqa: UP007
        return Completion(text=inputs.prompt)


class Outer:
    def preprocess(self, inputs: Prompt):
        return inputs.prompt

    def predict(self, inputs):
        return inputs

    def postprocess(self, result) -> Completion:
        return Completion(text=result)
