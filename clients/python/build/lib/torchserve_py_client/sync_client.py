"""The client for code without asyncio: each call runs on an event loop of the client's own, in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Self, TypeVar, Unpack

from .async_client import BYTES, PATIENCE, AsyncClient, Options
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
    def resume_token(self) -> str | None:
        """What lets another connection, also of another program, go on with this session: ``session(resume=…)``.

        It is a secret: whoever has it has the session. None: late steps are dropped, so that a session ends with its
        connection; or the session has a sequence with a name, by which it goes on.
        """
        return self._session.resume_token

    @property
    def last_step(self) -> int:
        """The number of the last step that was applied, as far as this client knows; 0: none.

        Right after ``session(resume=…)``, 0 says that nothing is stored under the token: the session begins anew.
        """
        return self._session.last_step

    @property
    def window(self) -> int:
        """How many steps may be without an answer."""
        return self._session.window

    def step(self, body: Any, *, end: bool = False) -> Answer:
        """Send a step, and return its answer; ``end`` marks the last step.

        Raises StepFailed: it has failed, and does not count unless its cause says otherwise; SequenceLost: the sequence
        is over; SessionClosed: the session is over, or could not be resumed in time.
        """
        return self._loop.run(self._session.step(body, end=end))

    def stream(self, body: Any, *, end: bool = False) -> Iterator[bytes]:
        """Send a step, and yield the parts of its answer as they come; raises what `step` raises."""
        return self._loop.iterate(self._session.stream(body, end=end))

    def send(self, body: Any, *, end: bool = False) -> int:
        """Send a step without waiting for its answer, and return its number.

        Raises ValueError: `window` steps are without an answer: receive one first; SequenceLost, SessionClosed: as
        `step` does.
        """
        return self._loop.run(self._session.send(body, end=end))

    def receive(self) -> Answer:
        """Return the answer to the oldest step that has none; raises what `step` raises."""
        return self._loop.run(self._session.receive())

    def close(self) -> None:
        """Close the session; a stored sequence that has not ended stays until it expires."""
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
    """A client of the server whose inference API is at ``url``, such as ``http://localhost:8080``.

    Args:
        url: Where the server is. `stored_sequence` needs the management API.
        key: The key of the API, unless token authorization is off.
        patience: Seconds that `predict` may take until the whole answer is there, with all attempts; that `stream`
            waits for the next part; and for which a session tries to go on after its connection was lost.
    """

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
        """Return a model's answer.

        A request that the server refuses for the moment (429, 503 with ``Retry-After``) is sent again when the server
        says, as long as ``patience`` lasts.

        Args:
            model: The name of the model.
            body: Bytes or a text, or else a value that is sent as JSON: numbers, lists, dicts, arrays of numpy,
                tensors, dataclasses, models of pydantic.
            options: ``sequence``: the id of the sequence that the request belongs to, for a model with a memory;
                ``version`` of the model; ``json``, ``content_type``, ``headers``: see `Options`.

        Raises RequestFailed: there is no answer; httpx.HTTPError: the server cannot be reached, or has not answered
        within ``patience``; TypeError: JSON cannot represent the value.
        """
        return self._loop.run(self._client.predict(model, body, **options))

    def stream(self, model: str, body: Any = None, **options: Unpack[Options]) -> Iterator[bytes]:
        """Yield a model's answer as it comes, in parts.

        Takes what `predict` takes. ``patience`` is the most seconds until the next part. Raises what `predict` raises.
        """
        return self._loop.iterate(self._client.stream(model, body, **options))

    def session(
        self,
        model: str,
        *,
        version: str | None = None,
        content_type: str = BYTES,
        resume: str | None = None,
        sequence: str | None = None,
    ) -> Session:
        """Return a live session, to be used with ``with``: its steps share one state, in order.

        Args:
            model: The name of a model with a memory.
            version: The version of the model; without it the default one.
            content_type: That of all steps.
            resume: The ``resume_token`` of an earlier session, which goes on: also of another program, after a restart.
            sequence: The id of a sequence, which others may use as well: the session and requests over HTTP with this
                id share its state. Without it the session has a sequence of its own.

        Raises ValueError: both ``resume`` and ``sequence`` are given: a named sequence goes on by its name.
        """
        made = self._client.session(model, version=version, content_type=content_type, resume=resume, sequence=sequence)
        return Session(self._loop, made)

    def stored_sequence(self, model: str, sequence_id: str) -> StoredSequence:
        """Return what a client of the management API can do with a stored sequence."""
        return StoredSequence(self._loop, self._client.stored_sequence(model, sequence_id))
