"""The results of registering and scaling a model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegisterResult:
    """The result of a registration."""

    model_name: str
    model_version: str
    workers_started: int
    workers_wanted: int
    pending: bool  # whether the workers are still being started


@dataclass(frozen=True)
class ScaleResult:
    """The result of scaling."""

    pending: bool
    workers: int
    wanted: int
