"""What all endpoints of a server have in common for a replay: a request is sent, and there is an answer or none."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.tools.replay.replay_requests import ReplayRequest

#: By this requests of a replay are told from others.
USER_AGENT = "torchserve-py-replay"
#: How the addresses of gRPC ports begin.
GRPC, GRPC_TLS = "grpc://", "grpcs://"


class NoAnswer(Exception):
    """A request may have run, but has no answer; the message says why."""


class NotConnected(Exception):
    """A request has not reached the server; the message says why."""


class SentAnswer(NamedTuple):
    """An answer.

    Attributes:
        status: As its API says it.
        messages: The body, or the messages of a stream.
        headers: In lower case.
        failure: What a failure says of itself; empty if the answer is none.
        is_full: Whether the server has no room for the request now.
        seconds: How long it took.
    """

    status: str
    messages: Sequence[bytes]
    headers: Mapping[str, str]
    failure: str = ""
    is_full: bool = False
    seconds: float = 0.0


class ReplaySender(Protocol):
    """Sends requests to one kind of endpoint."""

    async def send(self, request: ReplayRequest, sequence_id: str | None) -> SentAnswer:
        """Send a request; ``sequence_id`` names the fresh sequence. Raises NoAnswer, NotConnected."""

    def recorded_status(self, record: JournalRecord) -> str:
        """Return the status of the recorded answer, as `send` would give it."""
