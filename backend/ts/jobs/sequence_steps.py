"""What counts the steps of sequences, as the worker sees it: which requests run, and what is done between them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from ts.jobs.row import Row
from ts.protocol.frames import Buffer
from ts.protocol.messages import EndedSequence, Histories, InferRow, ResultRow, SequenceNews


class StoreReports(NamedTuple):
    """Called in a thread with what is seen of the store of sequences, now and then."""

    #: With whether the store may drop sequences by itself, and how many keys it has dropped ever.
    evictions: Callable[[bool, int], None] = lambda may_evict, count: None
    #: With how many bytes the store has, and how many sequences, open and over; None if it cannot say that cheaply.
    size: Callable[[int, int | None], None] = lambda size, sequences: None


class Steps(Protocol):
    """The steps of one worker's sequences: each request of a sequence is one."""

    #: Whether a step whose handler has returned can still be undone.
    undoes: bool

    def listen(self, tell: Callable[[Sequence[str]], None], reports: StoreReports) -> None:
        """Have a thread call ``tell`` with the ids of sequences that other servers ask for, and report on the store."""

    def hand_over(self, send: Callable[[list[Any]], None], most: int) -> Mapping[str, Callable[..., Any]]:
        """Return what answers the server's questions to give and to take sequences, by their kind.

        Empty if a store has the states. ``send`` sends a message to the server; ``most`` is the most bytes of one.
        """

    def add_state(self, sequence_id: str, piece: Buffer) -> None:
        """Take a piece of a sequence that another worker gives."""

    def forget_arriving(self, sequence_id: str) -> bool:
        """Drop what has come of a sequence that is not taken after all; return whether it is one of these."""
        ...

    def begin(
        self, rows: list[Row], wire_rows: Sequence[InferRow], histories: Histories = ...
    ) -> tuple[list[Row], list[ResultRow]]:
        """Return the rows to run, and the answers to the other rows.

        Args:
            rows: The decoded requests.
            wire_rows: The wire rows of these requests, perhaps among others.
            histories: By job id, earlier deliveries of some requests; see `ts.protocol.messages.StepHistory`.
        """

    def rehearse(self, sequence_ids: Sequence[str]) -> AbstractContextManager[None]:
        """Let a handler run steps of sequences that nobody has sent; their states are dropped at the end."""

    def tell(self, row: Row, headers: Sequence[Sequence[str]]) -> tuple[Sequence[Sequence[str]], SequenceNews | None]:
        """Return the headers of a part of an answer, and what it tells the server of sequences."""

    def complete(self, answers: list[ResultRow]) -> list[ResultRow]:
        """Record the steps that these answers complete; return the answers to send."""

    def complete_and_send(
        self, answers: list[ResultRow], send: Callable[[list[ResultRow]], None], seconds: float, *, meanwhile: bool
    ) -> None:
        """Record the steps that these answers complete, and send the answers.

        Args:
            seconds: How long the handler took.
            meanwhile: Whether a thread may commit and send while the caller goes on; `wait_for_commit` waits for that.
        """

    def undo_for_room(self, error: BaseException, sent: Sequence[InferRow]) -> bool:
        """Make room if an error of a step says that the memory of its device is exhausted, and undo all that run.

        Return whether they were undone and may begin again with what was ``sent``.
        """

    def wait_for_commit(self) -> None:
        """Wait for what `complete_and_send` has left to a thread; call this before anything else is sent."""

    def end(self, ended: Iterable[EndedSequence]) -> None:
        """Drop sequences that the server's scheduler has closed."""

    def rest(self) -> None:
        """Do the deferred work after answers have left."""

    @property
    def store_update_due(self) -> bool:
        """Whether `update_store` has to run."""

    def update_store(self) -> None:
        """Write to the store which sequences have ended, and which other workers may take over."""

    def close(self) -> None:
        """Release what other workers and servers are to continue."""
