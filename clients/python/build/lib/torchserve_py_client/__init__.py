"""A client of the server: requests, streams, and live sessions that resume by themselves (``docs/client.md``).

The package torchserve-py-client has it as ``torchserve_py_client``, without the server. As ``torchserve_py.client`` it
needs the extra ``client`` of torchserve-py.
"""

try:
    from .async_client import AsyncClient
    from .replies import Answer, RequestFailed, SequenceLost, SessionClosed, StepFailed
    from .resuming_session import AsyncSession
    from .stored_sequence import AsyncStoredSequence, Bookmark, SequenceDescription
    from .sync_client import Client, Session, StoredSequence
except ModuleNotFoundError as error:
    if error.name != "httpx":
        raise
    message = "the client needs the package httpx: pip install 'torchserve-py[client]'"
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncSession",
    "AsyncStoredSequence",
    "Bookmark",
    "Client",
    "RequestFailed",
    "SequenceDescription",
    "SequenceLost",
    "Session",
    "SessionClosed",
    "StepFailed",
    "StoredSequence",
]
