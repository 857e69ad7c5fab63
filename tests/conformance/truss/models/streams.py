"""Models that stream."""

import asyncio

from fastapi import HTTPException

PATIENCE = 60
EMOJI = "🙂".encode()


async def chunks(kind):
    for number in range(5):
        if kind == "early error" or (kind == "late error" and number == 3):
            raise ValueError("a secret detail")
        if kind == "early http error":
            raise HTTPException(418, "a teapot")
        if kind == "wrong type" and number == 3:
            yield {"no": "text"}
        yield str(number)


class Streams:
    async def predict(self, inputs):
        if inputs == "emoji":
            return self.halves()
        return chunks(inputs)

    def halves(self):
        yield EMOJI[:2]
        yield EMOJI[2:]

    def chat_completions(self, inputs):
        yield "chat "
        yield "completions"

    def messages(self, inputs):
        yield "mess"
        yield "ages"


class Gaps:
    """Streams that pause for longer than they may, at their beginning or later."""

    def __init__(self):
        self.closed = 0

    async def predict(self, inputs):
        if inputs == "plain":
            return "served"
        return self.stream(inputs)

    async def stream(self, kind):
        try:
            if kind == "later":
                yield "first"
            await asyncio.sleep(PATIENCE)
            yield "never"
        finally:
            self.closed += 1

    async def completions(self, inputs):
        return self.closed


class StreamedSteps:
    async def preprocess(self, inputs):
        for item in inputs:
            yield item * 2

    async def predict(self, inputs):
        return [item async for item in inputs]

    async def postprocess(self, result):
        for item in result:
            yield str(item)


class Collected:
    async def preprocess(self, inputs):
        for item in inputs:
            yield item * 2

    async def predict(self, inputs):
        return [item async for item in inputs]
