"""The messages of the repository."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import RootModel

from ts.mlserver.types.base import BaseModel


class RepositoryIndexRequest(BaseModel):
    """Asks which models there are."""

    ready: bool | None = None


class State(Enum):
    """What a model is doing."""

    UNKNOWN = "UNKNOWN"
    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


class RepositoryIndexResponseItem(BaseModel):
    """One model."""

    name: str
    version: str | None = None
    state: State
    reason: str


class RepositoryIndexResponse(RootModel[list[RepositoryIndexResponseItem]]):
    """All models."""

    def __iter__(self) -> Iterator[RepositoryIndexResponseItem]:  # type: ignore[override]
        return iter(self.root)

    def __getitem__(self, index: Any) -> Any:
        return self.root[index]

    def __len__(self) -> int:
        return len(self.root)


class RepositoryLoadErrorResponse(BaseModel):
    """Why a model could not be loaded."""

    error: str | None = None


class RepositoryUnloadErrorResponse(BaseModel):
    """Why a model could not be unloaded."""

    error: str | None = None
