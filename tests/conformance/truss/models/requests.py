"""Models that look at the request."""

from fastapi import Request


class AllThree:
    async def preprocess(self, request: Request):
        return await request.json()

    async def predict(self, inputs, request: Request):
        return {**inputs, "length": len(await request.body())}

    def postprocess(self, result):
        return {**result, "postprocessed": True}


class RequestOnly:
    async def predict(self, request: Request):
        body = await request.body()
        return {"body": body.decode("latin-1"), "method": request.method, "path": request.url.path}

    def chat_completions(self, inputs):
        return inputs


class RawPreprocess:
    async def preprocess(self, request: Request):
        return len(await request.body())

    def predict(self, inputs):
        return inputs


class Aliases:
    def __init__(self):
        self.counts = {"completions": 0, "embeddings": 0, "messages": 0, "responses": 0}

    def count(self, name):
        self.counts[name] += 1
        return [name, self.counts[name]]

    def completions(self, inputs):
        return self.count("completions")

    def embeddings(self, inputs):
        return self.count("embeddings")

    def messages(self, inputs):
        return self.count("messages")

    def responses(self, inputs):
        return self.count("responses")

    def predict(self, inputs):
        return inputs


class OpenAi:
    """What a model with OpenAI's interface answers: one completion, or a stream of events."""

    async def chat_completions(self, inputs, request: Request):
        from fastapi.responses import StreamingResponse

        if inputs.get("stream"):
            return StreamingResponse(self.events(inputs), media_type="text/event-stream")
        message = {"role": "assistant", "content": inputs["messages"][0]["content"].upper()}
        return self.completion("chat.completion", {"message": message, "finish_reason": "stop"})

    async def events(self, inputs):
        import json

        for word in inputs["messages"][0]["content"].split():
            chunk = self.completion("chat.completion.chunk", {"delta": {"content": word}, "finish_reason": None})
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    def completion(self, kind, choice):
        return {"id": "1", "object": kind, "created": 0, "model": "mine", "choices": [{"index": 0, **choice}]}


class Watching:
    """Looks whether the client is still there, whatever protocol it speaks."""

    def __init__(self):
        self.events = []

    async def predict(self, inputs, request: Request):
        import asyncio

        kind = inputs if isinstance(inputs, str) else inputs["kind"][0]
        self.events.append(f"{kind} begins")
        while not await request.is_disconnected():
            await asyncio.sleep(0.005)
        self.events.append(f"{kind} sees it")

    async def messages(self, inputs, request: Request):
        await self.predict(inputs, request)

    def completions(self):
        return self.events
