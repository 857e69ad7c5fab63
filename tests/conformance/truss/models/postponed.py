"""A model whose annotations are texts."""

from fastapi import Request


class Postponed:
    async def predict(self, inputs, request: Request):
        return {**inputs, "length": len(await request.body())}
