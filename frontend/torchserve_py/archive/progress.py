"""A progress bar for what takes long, shown only to a person: on a terminal, and for large content."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

LARGE_BYTES = 50_000_000


class Progress(Protocol):
    """Told how many more bytes are done."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> object: ...

    def update(self, n: int) -> object: ...


class _Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, n: int) -> None:
        pass


def progress_bar(total: int | None, label: str) -> Progress:
    """A bar that runs to `total` bytes, or a silent stand-in. An unknown total counts as large."""
    if not sys.stderr.isatty() or (total is not None and total < LARGE_BYTES):
        return _Silent()
    from tqdm import tqdm

    bar: Progress = tqdm(total=total, desc=label, unit="B", unit_scale=True, unit_divisor=1024, leave=False)
    return bar
