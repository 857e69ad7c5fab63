"""Models whose steps stop where a request tells them to, and go on when a test lets them.

``completions`` needs no slot: it opens gates, and tells which requests are inside of which step.
"""

import asyncio
import collections
import os
import threading
import time
from pathlib import Path

from fastapi import Request
from fastapi.responses import StreamingResponse

PATIENCE = 60


class Gates:
    def __init__(self):
        self.inside = collections.defaultdict(list)
        self.entered = collections.defaultdict(list)
        self.gates = collections.defaultdict(asyncio.Event)

    async def stop(self, step, inputs):
        name = inputs["name"]
        self.inside[step].append(name)
        self.entered[step].append(name)
        try:
            if step in inputs["stops"]:
                async with asyncio.timeout(PATIENCE):
                    await self.gates[f"{step} {name}"].wait()
        finally:
            self.inside[step].remove(name)

    async def completions(self, inputs):
        for gate in inputs:
            self.gates[gate].set()
        return {"inside": self.inside, "entered": self.entered}


class Stages(Gates):
    async def preprocess(self, inputs):
        await self.stop("preprocess", inputs)
        return inputs

    async def predict(self, inputs):
        await self.stop("predict", inputs)
        return inputs

    async def postprocess(self, result):
        await self.stop("postprocess", result)
        return result["name"]


class StreamStages(Gates):
    """The same, with streams: they stop before each chunk that ``stops`` names."""

    async def predict(self, inputs):
        for number in range(2):
            await self.stop(f"chunk{number}", inputs)
            yield str(number)


class SyncStages:
    """The same with plain functions."""

    def __init__(self):
        self.inside = []
        self.gate = threading.Event()

    def predict(self, inputs):
        self.inside.append(inputs)
        if not self.gate.wait(PATIENCE):
            raise TimeoutError
        return inputs

    def is_healthy(self):
        return True

    async def completions(self, inputs):
        if inputs == "open":
            self.gate.set()
        return len(self.inside)


class StreamedPostprocess:
    def __init__(self):
        self.gate = asyncio.Event()
        self.streaming = 0

    def predict(self, inputs):
        return inputs

    async def postprocess(self, result):
        self.streaming += 1
        for number in result:
            yield number
            async with asyncio.timeout(PATIENCE):
                await self.gate.wait()

    async def completions(self, inputs):
        if inputs == "open":
            self.gate.set()
        return self.streaming


class AtGate:
    """Its predict waits for a file of the request's name in the folder GATES."""

    def __init__(self):
        self.preprocessed = []

    async def preprocess(self, inputs):
        self.preprocessed.append(inputs)
        return inputs

    async def predict(self, inputs):
        async with asyncio.timeout(PATIENCE):
            while not (Path(os.environ["GATES"]) / inputs).exists():
                await asyncio.sleep(0.01)
        return inputs

    async def completions(self, inputs):
        return self.preprocessed


class Leaving:
    """What becomes of the work for a client that leaves; ``completions`` tells the events and what goes on."""

    def __init__(self):
        self.events = []

    async def predict(self, inputs, request: Request):
        self.events.append(f"{inputs} begins")
        match inputs:
            case "polling stream":
                return self.polling(request)
            case "plain":
                while not await request.is_disconnected():
                    await asyncio.sleep(0.01)
                self.events.append("plain sees it")
            case "blocking":
                while not await request.is_disconnected():
                    time.sleep(0.002)
                self.events.append("blocking sees it")
            case "sync stream":
                return self.watching(request)
            case "cancelled":
                await self.wait_to_be_cancelled()
            case "endless stream":
                return self.endless("endless stream")
            case "response":
                return StreamingResponse(self.endless("response"))
        return "served"

    async def wait_to_be_cancelled(self):
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            self.events.append("cancelled is cancelled")
            raise

    async def polling(self, request):
        while not await request.is_disconnected():
            yield "more"
            await asyncio.sleep(0.01)
        self.events.append("polling stream sees it")

    def watching(self, request):
        with request.state.watch_disconnect() as left:
            yield "first"
            if left.wait(PATIENCE):
                self.events.append("sync stream sees it")

    async def endless(self, name):
        try:
            while True:
                yield "more"
                await asyncio.sleep(0.01)
        finally:
            self.events.append(f"{name} is closed")

    async def completions(self, inputs):
        return self.events
