"""Models with WebSockets."""

import asyncio

from fastapi import WebSocket


class EchoSocket:
    def __init__(self):
        self.ends = []

    async def websocket(self, websocket: WebSocket):
        while True:
            message = await websocket.receive()
            if message["type"] == "websocket.disconnect":
                print("the client closed with", message["code"], flush=True)
                return
            text = message.get("text")
            if text == "done":
                return
            if text == "raise":
                raise ValueError("a secret detail")
            if text == "close":
                await websocket.close(4000, "as you wish")
                return
            if text is None:
                await websocket.send_bytes(message["bytes"][::-1])
            else:
                await websocket.send_text(text.upper())


class IdleSocket:
    async def websocket(self, websocket: WebSocket):
        await websocket.receive_text()
        await asyncio.sleep(0)
