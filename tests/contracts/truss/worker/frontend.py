"""The frontend's side of a Truss without its process: jobs go in, result rows come out, clients leave."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.unit.ts.sent_jobs import DEADLINE, FakeConnection, SentJob

from ts.contracts.truss.model_methods import describe
from ts.contracts.truss.request_spans import Tracing
from ts.contracts.truss.served_model import ServedTruss
from ts.contracts.truss.truss_config import read_config
from ts.contracts.truss.truss_runtime import TrussRuntime
from ts.protocol.messages import TRUSS, InferRow


class Job(SentJob):
    """One request that was sent."""

    async def answer(self) -> Answer:
        """Wait for the last row and return the whole answer."""
        return Answer(await self.all_rows())

    async def parts(self, count: int) -> list[bytes]:
        """Wait for so many rows; return their bodies."""
        return [bytes(row[5]) for row in await self.first_rows(count)]


class Answer:
    """All rows of one job."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        _, _, self.status, _, headers, *_ = rows[0]
        self.pairs = [tuple(pair) for pair in headers]
        self.headers = dict(self.pairs)
        self.body = b"".join(bytes(row[5]) for row in rows)
        self.error = rows[-1][6]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> tuple[int, str, Any]:
        """Status, error code and text."""
        assert self.headers["x-baseten-error-source"] == "04"
        return self.status, self.headers["x-baseten-error-code"], self.json["error"]

    @property
    def chunks(self) -> list[bytes]:
        """What a client gets chunk by chunk."""
        return [bytes(row[5]) for row in self.rows if len(row[5])]


class Frontend:
    """A model that is served.

    Args:
        model: An instance of a model class.
        runtime: Values for the section ``runtime`` of its configuration.
    """

    def __init__(
        self,
        model: Any,
        *,
        options: Mapping[str, Any] | None = None,
        size: int = 10_000_000,
        tracing: Tracing | None = None,
        **runtime: Any,
    ) -> None:
        self.model = model
        self.connection = FakeConnection()
        load: Any = {"model_name": "mine", "model_version": "1.0", "max_response_size": size}
        self.served = ServedTruss(load, describe(model), config_with(**runtime), options or {}, tracing)
        connection: Any = self.connection
        self.runtime = TrussRuntime(self.served, connection)
        self._ids = map(str, itertools.count())

    def infer(
        self,
        body: Any = None,
        *,
        endpoint: str = "predict",
        raw: Any = None,
        content_type: str | None = "application/json",
        headers: Iterable[tuple[Any, Any]] = (),
        protocol: str | None = TRUSS,
    ) -> Job:
        """Send a request; ``body`` is JSON, ``raw`` what is sent as it is."""
        job_id = next(self._ids)
        told = ((":endpoint", endpoint), (":path", f"/v1/models/mine:{endpoint}?q=1"), (":client", "127.0.0.1:5"))
        sent = json.dumps(body).encode() if raw is None else raw
        row = InferRow(
            job_id,
            (*headers, *(told if protocol == TRUSS else ())),
            content_type,
            sent,
            protocol,
            endpoint == "websocket",
        )
        return Job(self.runtime, self.connection, row)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds that depends on what the model or the runtime does."""
        async with asyncio.timeout(DEADLINE):
            while not condition():
                await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.runtime.close()


def config_with(**runtime: Any) -> dict[str, Any]:
    """Return a configuration with everything at its default but for values of the section ``runtime``."""
    config = read_config(Path(__file__).parent / "default")
    config["runtime"] |= runtime
    return config
