"""What can be wrong with a metric."""

from __future__ import annotations

from ts.mlserver.errors import MLServerError


class InvalidModelContext(MLServerError):
    """A metric was reported by code that no model runs."""

    def __init__(self) -> None:
        super().__init__(
            "Contextual method (e.g. mlserver.log() or mlserver.register()) was called outside of a model context.", 500
        )
