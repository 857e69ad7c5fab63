"""What a durable step costs against the length of its sequence: the state is written whole, or what is new to a log.

    python -m benchmarks.durable_steps [--steps 30]

The state of a sequence is a list of entries of 100 bytes; a step adds one. Both ways step at the same length in turn,
so that a busy machine slows both alike. Bytes are those that the store gets for the state; milliseconds are processor
time of the worker (medians), without the handler. The last two columns are what it takes once to have the state again
in another worker: reading, decoding, and ``rebuild``. Redis runs on the same machine; its own time is left out.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "backend"))

from benchmarks.durability import redis_server
from ts.sequence.sequence_cache import SequenceCache
from ts.sequences.redis.redis_store import RedisStore
from ts.sequences.sqlite.file_store import FileStore
from ts.sequences.steps.record import KeptStep
from ts.sequences.steps.server_identity import server_identity
from ts.sequences.steps.stores.store import Commit, KeptAnswer, Lease, Store, StoreSettings
from ts.sequences.steps.written_states import WrittenStates

LENGTHS = (1, 100, 1_000, 10_000, 300_000)
ENTRY = bytes(range(100))
KEPT = 3


class Measured(NamedTuple):
    """Medians of one way at one length."""

    size: float  # bytes of a step
    step: float  # milliseconds of a step
    again: float  # milliseconds until the state is there again


class Sequence:
    """A sequence at some length, whose steps write one way.

    Args:
        logs: Whether its steps append.
    """

    def __init__(self, store: Store, name: str, length: int, *, logs: bool) -> None:
        self._store, self._name, self._logs = store, name, logs
        context: Any = SimpleNamespace(
            cache_settings={"store": "file", "capacity": 10},
            sequence_cache=None,
            rebuild=rebuild if logs else None,
            system_properties={"gpu_id": None},
        )
        self._cache = SequenceCache(context)
        self._cache.run((name,))
        self._written = WrittenStates(self._cache, settings(), 2**30)
        self._cache[name] = []
        (acquired,) = store.acquire([name])
        assert acquired.lease is not None
        self._lease: Lease = acquired.lease
        self._lease.record.begin(name, "1.0", "")
        # The steps up to the length: of a log all of them, of a state the last one.
        for _ in range(length if logs else 0):
            self.step()
        if not logs:
            self._cache[name] = [ENTRY] * (length - 1)
            self.step()

    def step(self) -> tuple[int, float]:
        """Apply a step; return the bytes that it has written of the state, and its milliseconds."""
        record, name = self._lease.record, self._name
        self._cache[name].append(ENTRY)
        if self._logs:
            self._cache.append(name, ENTRY)
        began = time.process_time()
        whole = name in self._written.prepare([self._lease], lambda _: 1)
        state, entries = self._written.encode(self._lease, whole=whole)
        begins = not record.has_begun
        step = KeptStep(record.last + 1, str(record.last), b"")
        record.apply(step, KEPT)
        log = None if entries is None else self._written.log(self._lease, step.number, entries, runs_on=False)
        self._cache.forget_changes(name)
        kept = [KeptAnswer(step, b"")]
        assert self._store.commit([Commit(self._lease, state, "", kept, b"", begins, log)]) == [True]
        self._store.tidy()
        return len(state or entries or b""), 1000 * (time.process_time() - began)

    def again(self) -> float:
        """Have the state again, as another worker does; return the milliseconds."""
        self._store.release([(self._lease, time.monotonic() + 3600)])
        began = time.process_time()
        (acquired,) = self._store.acquire([self._name])
        decode = self._cache.encoding.decode
        state = None if acquired.state is None else decode(acquired.state)
        if acquired.log:
            (state,) = rebuild([state], [[entry for each in acquired.log for entry in decode(each.entries)]])
        taken = 1000 * (time.process_time() - began)
        assert acquired.lease is not None
        assert state == self._cache[self._name]
        self._lease = acquired.lease
        return taken


def rebuild(states: list[Any], entries: list[list[Any]]) -> list[Any]:
    """The states with the entries that were appended."""
    return [[*(state or ()), *new] for state, new in zip(states, entries, strict=True)]


def settings() -> StoreSettings:
    """The settings of the stores; checkpoints are left out, since they would hide how long a log is."""
    return StoreSettings(
        **{"model": "benchmark", "version": "1.0", "state_version": "", "owner": server_identity(), "lease": 600.0},
        **{"lifetime": 3600.0, "kept": KEPT, "remembered": 60.0, "most_ids": 1000},
    )


def stores() -> Iterator[tuple[str, Store]]:
    """Yield an empty store of each kind."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield "file", FileStore(settings(), str(folder / "sequences.db"), fsync=False)
        yield "redis", RedisStore(settings(), stack.enter_context(redis_server(folder)))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.durable_steps", description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30, help="steps of each way at each length (default 30)")
    steps = parser.parse_args().steps
    print("| store | entries | state: bytes | log: bytes | state: ms | log: ms | ratio | again, state: ms | log: ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind, store in stores():
        for length in LENGTHS:
            whole, log = measured(store, length, steps)
            figures = [f"{whole.size:,.0f}", f"{log.size:,.0f}", f"{whole.step:.2f}", f"{log.step:.2f}"]
            figures += [f"{whole.step / log.step:.1f}", f"{whole.again:.1f}", f"{log.again:.1f}"]
            print("|", " | ".join([kind, f"{length:,}", *figures]), "|", flush=True)


def measured(store: Store, length: int, steps: int) -> tuple[Measured, Measured]:
    """Return what steps cost at a length, with the state and with a log."""
    both = [Sequence(store, f"{length}{logs}", length, logs=logs) for logs in (False, True)]
    found: list[list[tuple[int, float]]] = [[], []]
    for _ in range(steps):
        for sequence, figures in zip(both, found, strict=True):
            figures.append(sequence.step())
    state, log = (
        Measured(
            *(statistics.median(each) for each in zip(*figures, strict=True)),
            statistics.median(sequence.again() for _ in range(5)),
        )
        for sequence, figures in zip(both, found, strict=True)
    )
    return state, log


if __name__ == "__main__":
    main()
