"""What registering and scaling come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RegisterResult:
    """What a registration came to."""

    model_name: str
    model_version: str
    workers_started: int
    workers_wanted: int
    pending: bool  # whether the workers are still being started


@dataclass(frozen=True)
class ScaleResult:
    """What scaling came to."""

    pending: bool
    workers: int
    wanted: int
