"""A progress bar for what takes long, shown only to a person: on a terminal, and for large content."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

LARGE_BYTES = 50_000_000

#: Takes how many more bytes are done.
Progress: TypeAlias = Callable[[int], object]


@contextmanager
def progress_bar(total: int | None, label: str) -> Iterator[Progress]:
    """Show a bar that runs to `total` bytes, or nothing. An unknown total counts as large."""
    if not sys.stderr.isatty() or (total is not None and total < LARGE_BYTES):
        yield lambda count: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=label, unit="B", unit_scale=True, unit_divisor=1024, leave=False) as bar:
        yield bar.update
