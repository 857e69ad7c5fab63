"""Transactions: how each change of what is served is made, so that a failure at any point leaves what was.

A change is checked and prepared; then those are told for whom it counts as well (the servers of a fleet); only then it
is made here, and the old is forgotten. So nothing has to be undone: if telling fails, nothing has changed. What has to
hold here in any case, such as the end of a bad canary, is made first, and told again until it is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from torchserve_py.core.serving.changes import Changes
from torchserve_py.endpoints.failures import EndpointError, Failure
from torchserve_py.endpoints.management.edits import Edit, Registered, Unregistered

T = TypeVar("T")

#: How many calls are remembered of which nobody knows whether the fleet was told of them.
_MOST_UNSURE: Final = 1_000


class ChangeListener(Protocol):
    """Is told of changes, such as a fleet."""

    async def tell(self, edits: Sequence[Edit]) -> None:
        """Return once the changes count for all. Raises EndpointError: they do not, or nobody knows whether they do."""

    async def insist(self, edits: Sequence[Edit]) -> None:
        """Tell of changes that hold here already; try again until that is done."""


class Transactions:
    """The changes of one server."""

    def __init__(self) -> None:
        self._changes = Changes()
        self.listeners: list[ChangeListener] = []
        #: The models that an operation of several steps holds, by name, with what others get as their answer meanwhile.
        self.held: dict[str, Failure | None] = {}
        #: The versions whose registration or end was answered with an error, although the fleet may know of it.
        self._unsure: dict[tuple[str, str], None] = {}

    async def carry_out(self, edit: Edit, apply: Callable[[], Awaitable[T]]) -> T:
        """Tell of a change that has been checked, then make it, even if the caller leaves.

        Raises EndpointError: it could not be told, so nothing has changed; and what ``apply`` raises.
        """

        async def tell_and_apply() -> T:
            await self.tell([edit])
            return await apply()

        return await self.complete(tell_and_apply())

    async def complete(self, change: Coroutine[Any, Any, T]) -> T:
        """Complete a change that tells by itself, even if the caller leaves."""
        return await self._changes.complete(change)

    async def tell(self, edits: Sequence[Edit]) -> None:
        """Tell of changes that are about to be made. Raises EndpointError: that cannot be done."""
        for listener in self.listeners:
            try:
                await listener.tell(edits)
            except EndpointError:
                for key in _versions(edits):
                    self._unsure[key] = None
                while len(self._unsure) > _MOST_UNSURE:
                    del self._unsure[next(iter(self._unsure))]
                raise
        for name, version in _versions(edits):
            self.forget_unsure(name, version)

    async def insist(self, edits: Sequence[Edit]) -> None:
        """Tell of changes that hold here already, again until that is done."""
        for listener in self.listeners:
            await listener.insist(edits)

    def is_unsure(self, name: str, version: str) -> bool:
        """Return whether nobody knows if the fleet was told that a version is registered, or ends."""
        return (name, version) in self._unsure

    def forget_unsure(self, name: str, version: str) -> None:
        """Note that it is known again."""
        self._unsure.pop((name, version), None)

    @contextlib.contextmanager
    def holding(self, name: str, refusal: Failure | None) -> Iterator[None]:
        """Keep a fleet from changing a model here meanwhile, and with a ``refusal`` operators, too."""
        self.held[name] = refusal
        try:
            yield
        finally:
            del self.held[name]

    def check_free(self, name: str) -> None:
        """Raise EndpointError if an operation is under way whose end would undo a change of a model."""
        if (refusal := self.held.get(name)) is not None:
            raise EndpointError(refusal)


def _versions(edits: Sequence[Edit]) -> Iterator[tuple[str, str]]:
    for edit in edits:
        if isinstance(edit, Registered):
            yield edit.name, edit.saved.version
        elif isinstance(edit, Unregistered):
            yield from ((edit.name, version) for version in edit.versions)
