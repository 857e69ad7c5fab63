"""Edits: what a call changes of what is served, and nothing else.

A fleet merges an edit into its newest state. So a server that has not yet seen the latest changes of others keeps them.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from torchserve_py.base.settings.schemas.versions import SavedModel


class Registered(NamedTuple):
    """A version is served, or served anew from its files.

    ``saved.default`` and ``saved.chosen`` tell whether it becomes the default version; they take nothing away.
    """

    saved: SavedModel

    @property
    def name(self) -> str:
        """The model."""
        return self.saved.name


class Unregistered(NamedTuple):
    """Versions are not served any more."""

    name: str
    versions: tuple[str, ...]


class Scaled(NamedTuple):
    """A version has another number of workers."""

    name: str
    version: str
    min_workers: int
    max_workers: int


class DefaultChosen(NamedTuple):
    """An operator has chosen the default version."""

    name: str
    version: str


class Weighted(NamedTuple):
    """The versions share the requests by these weights.

    With ``instead_of`` the edit counts only while the weights are these: what others have changed since then stays.
    ``until`` is when they end unless somebody moves that on (seconds since 1970).
    """

    name: str
    weights: Mapping[str, int]
    instead_of: Mapping[str, int] | None = None
    until: int | None = None


class Lapsed(NamedTuple):
    """The weights of a model have ended, since nobody has moved on the time ``until`` which they had."""

    name: str
    until: int


Edit: TypeAlias = Registered | Unregistered | Scaled | DefaultChosen | Weighted | Lapsed
