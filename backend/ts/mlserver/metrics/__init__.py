"""A model's own metrics: `register` describes one, `log` reports values."""

from ts.mlserver.metrics.context import log, register

__all__ = ["log", "register"]
