"""A client of the server: requests, streams, and live sessions that resume by themselves (``docs/client.md``).

Needs ``pip install torchserve-py[client]``.
"""

from torchserve_py.client.async_client import AsyncClient
from torchserve_py.client.replies import Answer, RequestFailed, SequenceLost, SessionClosed, StepFailed
from torchserve_py.client.resuming_session import AsyncSession
from torchserve_py.client.sync_client import Client, Session

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncSession",
    "Client",
    "RequestFailed",
    "SequenceLost",
    "Session",
    "SessionClosed",
    "StepFailed",
]
