"""The ids of jobs, by which logs, workers and clients call them."""

from __future__ import annotations

import itertools
import secrets
import uuid


class JobIds:
    """Makes UUIDs (version 4) whose last 48 bits count, behind random ones that are drawn once per process.

    An id has to be unique, not secret, and this is many times cheaper than fresh random bits for each request.
    """

    def __init__(self) -> None:
        self._prefix = str(uuid.uuid4())[:-12]
        self._numbers = itertools.count(secrets.randbits(40))

    def new(self) -> str:
        """An id that no other job has had."""
        return f"{self._prefix}{next(self._numbers):012x}"
