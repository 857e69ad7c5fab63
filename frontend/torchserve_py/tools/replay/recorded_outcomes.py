"""How a recorded request ended for its client: a journal says how it ended for the model."""

from collections.abc import Sequence
from typing import Final

from torchserve_py.tools.journal.journal_record import JournalRecord
from torchserve_py.versions.traffic.answer_comparison import documents_in
from ts.protocol.messages import OPEN_INFERENCE_GRPC, OPEN_INFERENCE_REST

#: In place of a status: the stream of an answer has failed after it had begun.
BROKEN_OFF: Final = "broken off"
_NOT_IMPLEMENTED: Final = 501


def as_answered(record: JournalRecord) -> JournalRecord:
    """Return the record with the status that the client got.

    Endpoints of the Open Inference Protocol with one response refuse a model that gives several, or none.
    """
    if not is_open_inference(record) or is_stream(record):
        return record
    count = sum(1 for size in record["part_bytes"] if size)
    if count > 1 or (count == 0 and not record["failed"]):
        return {**record, "status": _NOT_IMPLEMENTED, "failed": True}
    return record


def is_open_inference(record: JournalRecord) -> bool:
    """Return whether a request is one of the Open Inference Protocol."""
    return record["protocol"] in (OPEN_INFERENCE_REST, OPEN_INFERENCE_GRPC)


def is_stream(record: JournalRecord) -> bool:
    """Return whether each part of the answer is a message of its own."""
    return is_open_inference(record) and record["headers"].get(":endpoint", "").endswith("_stream")


def broke_off(record: JournalRecord) -> bool:
    """Return whether an answer has failed after it had begun."""
    return record["failed"] and len(record["part_bytes"]) > 1


def ends_with_error(messages: Sequence[bytes]) -> bool:
    """Return whether an answer consists of events of which the last one says why there are no more."""
    last = documents_in(b"".join(messages))[-1:]
    return bool(last) and isinstance(last[0], dict) and "error" in last[0]
