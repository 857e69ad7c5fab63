"""One stored sequence: it is described, forked, rewound, and moves (``docs/sequence-stores.md``)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import httpx

from .replies import CAUSE, RequestFailed


class SequenceDescription(NamedTuple):
    """What the store has of a sequence.

    Attributes:
        sequence: Its id.
        version: The version of the model that runs it.
        last_step: The number of its last step.
        state: ``open``, ``ended`` or ``expired``.
        steps: The steps to which it can go back, and after which forks can go on.
        held_by: ``this server``, ``another server``, or nothing.
        told: All that the server tells, by its names.
    """

    sequence: str
    version: str
    last_step: int
    state: str
    steps: Sequence[int]
    held_by: str
    told: Mapping[str, Any]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Read the server's answer."""
        steps = [step for span in told["stepsWithState"] for step in range(span["from"], span["to"] + 1)]
        return cls(
            told["sequenceId"], told["modelVersion"], told["lastStep"], told["state"], steps, told["heldBy"], told
        )


class Bookmark(NamedTuple):
    """Where a sequence goes on: after ``last_step``, with the token that its next steps may send."""

    sequence: str
    version: str
    last_step: int
    token: str

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Self:
        """Read the server's answer."""
        return cls(told["sequenceId"], told["modelVersion"], told["lastStep"], told["token"])


class AsyncStoredSequence:
    """A stored sequence, by the management API.

    Each method raises RequestFailed: the server refuses it, or cannot do it; httpx.HTTPError: the server cannot be
    reached, or has not answered in time: a change may have been made all the same.
    """

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self._http = http
        self._path = path

    async def describe(self) -> SequenceDescription:
        """Return what the store has of it."""
        return SequenceDescription.of((await self._call("GET", "")).json())

    async def fork(self, *, as_id: str | None = None, step: int | None = None) -> Bookmark:
        """Copy it under another id, one that the server makes up without ``as_id``.

        The copy goes on after ``step``, without one after the last.
        """
        return Bookmark.of((await self._call("POST", "/fork", {"as": as_id, "step": step})).json())

    async def rewind(self, *, step: int) -> Bookmark:
        """Let it go on after an earlier step; later ones are undone."""
        return Bookmark.of((await self._call("POST", "/rewind", {"step": step})).json())

    async def export(self) -> bytes:
        """Return it as a file."""
        return (await self._call("GET", "/export")).content

    async def import_(self, file: bytes, *, replace: bool = False) -> Bookmark:
        """Store the sequence in a file that was exported, with ``replace`` in place of the one that is there."""
        return Bookmark.of((await self._call("PUT", "/import", {"replace": str(replace).lower()}, file)).json())

    async def _call(
        self, method: str, what: str, given: Mapping[str, object] = MappingProxyType({}), content: bytes | None = None
    ) -> httpx.Response:
        query = {name: str(value) for name, value in given.items() if value is not None}
        answer = await self._http.request(method, f"{self._path}{what}", params=query, content=content)
        if answer.status_code >= 400:
            raise RequestFailed.of(answer.status_code, answer.headers.get(CAUSE, ""), answer.content)
        return answer
