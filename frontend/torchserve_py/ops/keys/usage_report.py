"""Tells what each key has used: as metrics, and in daily files."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final, NamedTuple

from torchserve_py.base.metrics.families import Family
from torchserve_py.base.metrics.instruments import Counter
from torchserve_py.base.metrics.server_metrics import ServerMetrics
from torchserve_py.core.serving.usage import KeyTotals, Usage
from torchserve_py.endpoints.routing import EndpointContext
from torchserve_py.ops.keys.given_keys import GivenKeys
from torchserve_py.ops.keys.key_account import KeyAccount, KeyUsage
from torchserve_py.ops.keys.keys_settings import KeysSettings
from torchserve_py.ops.keys.usage_files import UsageFolderError, UsageOfDay, held_folder

logger = logging.getLogger(__name__)

#: How often the accounts are read, and the file is written (seconds).
_READ_INTERVAL: Final = 1.0
_WRITE_INTERVAL: Final = 60.0
#: How long the last writing may take (seconds).
_LAST_LIMIT: Final = 2.0


class Used(NamedTuple):
    """What a key, by its name, has used of a model since it was asked last."""

    key: str
    model: str
    usage: KeyUsage


class UsageReader:
    """Reads accounts, again and again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], KeyUsage] = {}

    def read(self, account: KeyAccount) -> Iterator[Used]:
        """Yield what was used since the last time, by model."""
        for model, now in account.usage.items():
            before = self._seen.get((account.client, model), KeyUsage())
            if now == before:
                continue
            self._seen[account.client, model] = replace(now)
            yield Used(
                account.name,
                model,
                KeyUsage(
                    now.requests - before.requests,
                    now.failed - before.failed,
                    now.refused - before.refused,
                    now.tokens - before.tokens,
                    now.seconds - before.seconds,
                ),
            )


class UsageMetrics:
    """The usage of keys as metrics, added to those of the server."""

    def __init__(self, metrics: ServerMetrics) -> None:
        self._requests, self._refused, self._tokens, self._seconds = map(metrics.add, usage_families())

    def add(self, used: Used) -> None:
        """Count what a key has used."""
        labels = {"key": used.key, "model_name": used.model}
        self._requests.child(labels).inc(used.usage.requests)
        self._refused.child(labels).inc(used.usage.refused)
        self._tokens.child(labels).inc(used.usage.tokens)
        self._seconds.child(labels).inc(used.usage.seconds)


def usage_families() -> Sequence[Family[Counter]]:
    """Return requests, refusals, tokens and seconds of keys."""
    return (
        Family("ts_key_requests_total", Counter, "Count", "Requests of a key that have ended"),
        Family("ts_key_refusals_total", Counter, "Count", "Requests of a key that its limits have refused"),
        Family("ts_key_tokens_total", Counter, "Count", "Tokens of answers to a key"),
        Family("ts_key_worker_seconds_total", Counter, "Seconds", "Seconds that requests of a key were with workers"),
    )


async def report_usage(context: EndpointContext) -> None:
    """Tell what the keys that the server was given have used, until it is cancelled."""
    keys = context.tokens
    if not isinstance(keys, GivenKeys):
        return
    folder = context.settings.of(KeysSettings).usage_folder
    try:
        with nullcontext() if folder is None else held_folder(folder):
            await _Report(keys, UsageMetrics(context.metrics), folder, context.serving.usage).run()
    except UsageFolderError as error:
        logger.error("The usage of keys is not written to files: %s", error)
        await _Report(keys, UsageMetrics(context.metrics), None, context.serving.usage).run()


class _Report:
    def __init__(self, keys: GivenKeys, metrics: UsageMetrics, folder: Path | None, shown: Usage) -> None:
        self._keys, self._metrics, self._folder, self._shown = keys, metrics, folder, shown
        self._reader = UsageReader()
        self._today: date | None = None
        self._day: UsageOfDay | None = None

    async def run(self) -> None:
        loop, write_at = asyncio.get_running_loop(), 0.0
        try:
            while True:
                today = datetime.now(UTC).date()
                if today != self._today:
                    await asyncio.to_thread(self._begin, today)
                self._read()
                if loop.time() >= write_at:
                    await asyncio.to_thread(self._write)
                    write_at = loop.time() + _WRITE_INTERVAL
                await asyncio.sleep(_READ_INTERVAL)
        finally:
            self._read()
            with suppress(TimeoutError):  # a disk that hangs does not keep the server
                async with asyncio.timeout(_LAST_LIMIT):
                    await asyncio.to_thread(self._write)

    def _read(self) -> None:
        totals = dict(self._shown.keys)
        for account in self._keys.accounts():
            for used in self._reader.read(account):
                self._metrics.add(used)
                new, before = used.usage, totals.get(used.key, KeyTotals())
                totals[used.key] = KeyTotals(
                    before.requests + new.requests,
                    before.failed + new.failed,
                    before.refused + new.refused,
                    before.tokens + new.tokens,
                    before.seconds + new.seconds,
                )
                if self._day is not None:
                    self._day.add(used.key, used.model, used.usage)
        self._shown.keys = totals

    def _begin(self, today: date) -> None:
        """Write the day before for the last time, and go on with what today's file says."""
        self._write()
        self._today, self._day = today, None
        if self._folder is not None:
            try:
                self._day = UsageOfDay(self._folder, today)
            except (OSError, ValueError) as error:
                logger.error("The usage of today cannot be read, and is not written: %s", error)

    def _write(self) -> None:
        if self._day is None:
            return
        try:
            self._day.write()
        except OSError as error:
            logger.error("The usage of keys could not be written this time: %s", error)
