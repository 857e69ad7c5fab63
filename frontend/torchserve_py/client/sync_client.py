"""The client for code without asyncio: each call runs on an event loop of the client's own, in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self, TypeVar, Unpack

from .async_client import PATIENCE, AsyncClient, Options
from .replies import Answer
from .resuming_session import AsyncSession
from .stored_sequence import AsyncStoredSequence, Bookmark, SequenceDescription

T = TypeVar("T")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="torchserve client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def iterate(self, pieces: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> tuple[T, ...]:
            async for piece in pieces:
                return (piece,)
            return ()

        while piece := self.run(following()):
            yield piece[0]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Session:
    """A live session; see `AsyncSession`, whose methods it has."""

    def __init__(self, loop: _Loop, session: AsyncSession) -> None:
        self._loop = loop
        self._session = session

    def __enter__(self) -> Self:
        self._loop.run(self._session.__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def sequence(self) -> str:
        """The id of the session's sequence, as logs have it."""
        return self._session.sequence

    @property
    def window(self) -> int:
        """How many steps may be without an answer."""
        return self._session.window

    def step(self, body: Any, *, end: bool = False) -> Answer:
        """Send a step, and return its answer; see `AsyncSession.step`."""
        return self._loop.run(self._session.step(body, end=end))

    def stream(self, body: Any, *, end: bool = False) -> Iterator[bytes]:
        """Send a step, and yield the parts of its answer; see `AsyncSession.stream`."""
        return self._loop.iterate(self._session.stream(body, end=end))

    def send(self, body: Any, *, end: bool = False) -> int:
        """Send a step without waiting for its answer, and return its number; see `AsyncSession.send`."""
        return self._loop.run(self._session.send(body, end=end))

    def receive(self) -> Answer:
        """Return the answer to the oldest step that has none; see `AsyncSession.receive`."""
        return self._loop.run(self._session.receive())

    def close(self) -> None:
        """Close the session; see `AsyncSession.close`."""
        self._loop.run(self._session.close())


class StoredSequence:
    """A stored sequence; see `AsyncStoredSequence`, whose methods it has."""

    def __init__(self, loop: _Loop, sequence: AsyncStoredSequence) -> None:
        self._loop = loop
        self._sequence = sequence

    def describe(self) -> SequenceDescription:
        """Return what the store has of it; see `AsyncStoredSequence.describe`."""
        return self._loop.run(self._sequence.describe())

    def fork(self, *, as_id: str | None = None, step: int | None = None) -> Bookmark:
        """Copy it under another id; see `AsyncStoredSequence.fork`."""
        return self._loop.run(self._sequence.fork(as_id=as_id, step=step))

    def rewind(self, *, step: int) -> Bookmark:
        """Let it go on after an earlier step; see `AsyncStoredSequence.rewind`."""
        return self._loop.run(self._sequence.rewind(step=step))

    def export(self) -> bytes:
        """Return it as a file; see `AsyncStoredSequence.export`."""
        return self._loop.run(self._sequence.export())

    def import_(self, file: bytes, *, replace: bool = False) -> Bookmark:
        """Store the sequence in a file; see `AsyncStoredSequence.import_`."""
        return self._loop.run(self._sequence.import_(file, replace=replace))


class Client:
    """A client of one server; see `AsyncClient`, whose methods and arguments it has."""

    def __init__(self, url: str, *, key: str | None = None, patience: float = PATIENCE) -> None:
        self._loop = _Loop()
        self._client = AsyncClient(url, key=key, patience=patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections, and end the thread."""
        self._loop.run(self._client.close())
        self._loop.close()

    def predict(self, model: str, body: Any = None, **options: Unpack[Options]) -> Answer:
        """Return a model's answer; see `AsyncClient.predict`."""
        return self._loop.run(self._client.predict(model, body, **options))

    def stream(self, model: str, body: Any = None, **options: Unpack[Options]) -> Iterator[bytes]:
        """Yield a model's answer as it comes; see `AsyncClient.stream`."""
        return self._loop.iterate(self._client.stream(model, body, **options))

    def session(self, model: str, **more: Any) -> Session:
        """Return a live session, to be used with ``with``; see `AsyncClient.session`."""
        return Session(self._loop, self._client.session(model, **more))

    def stored_sequence(self, model: str, sequence_id: str) -> StoredSequence:
        """Return what a client of the management API can do with a stored sequence."""
        return StoredSequence(self._loop, self._client.stored_sequence(model, sequence_id))
