"""Settings, metrics and raw connections for the tests of endpoints."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torchserve_py.base.metrics.handler_metrics import HandlerMetrics
from torchserve_py.base.settings.addresses import Address
from torchserve_py.base.settings.server_settings import server_settings
from torchserve_py.base.settings.table import Settings

ANY_PORT = Address("http", "127.0.0.1", 0)


def make_settings(folder: Path, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "model_store": folder,
        "inference_address": ANY_PORT,
        "management_address": ANY_PORT,
        "metrics_address": ANY_PORT,
        "disable_token_authorization": True,
        "enable_model_api": True,
        "access_log": False,
    }
    return server_settings().model_construct(**{**values, **changes})


U = TypeVar("U")


class FakeMetrics:
    def __init__(self) -> None:
        self._answers: list[tuple[float, int]] = []
        self._http_requests: Counter[tuple[str, str, int]] = Counter()
        #: What counts requests that are over.
        self._due: list[Callable[[], None]] = []
        self.asked_for: set[str] | None = None
        self.exposed: Iterable[str] = ("# HELP\n",)
        self.followers: list[Any] = []
        self.value_followers: list[Any] = []
        self.handlers = HandlerMetrics()
        #: Families that were added.
        self.added: list[Any] = []

    @property
    def answers(self) -> list[tuple[float, int]]:
        self._fold()
        return self._answers

    @property
    def http_requests(self) -> Counter[tuple[str, str, int]]:
        self._fold()
        return self._http_requests

    def _fold(self) -> None:
        due, self._due = self._due, []
        for fold in due:
            fold()

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = Counter(status // 100 for _, status in self.answers)
        return counts[2], counts[4], counts[5]

    def answered(self, at: float, status: int) -> None:
        self._answers.append((at, status))

    def count_answers(self, status: int, moments: Sequence[float]) -> None:
        self._answers += ((at, status) for at in moments)

    def soon(self, fold: Callable[[], None]) -> None:
        self._due.append(fold)

    def add(self, family: U) -> U:
        """Remember the family."""
        self.added.append(family)
        return family

    def expose(self, names: set[str] | None) -> Iterator[str]:
        self.asked_for = names
        yield from self.exposed


class RawConnection:
    """A connection whose bytes a test sees."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> str:
        """The next response's head, lower-cased."""
        async with asyncio.timeout(60):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()

    async def rest(self) -> bytes:
        """Everything until the server closes the connection."""
        async with asyncio.timeout(60):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        await asyncio.wait([asyncio.ensure_future(self.writer.wait_closed())], timeout=180)
