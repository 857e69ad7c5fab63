"""A handler that adds up, steps for it, what each was told, and sequences of it that go back."""

from collections.abc import Callable
from typing import Any

from tests.unit.ts.frontend_stub import Worker, row

from ts.protocol.boot_clock import boot_time
from ts.protocol.messages import EndedSequence, StepHistory
from ts.sequences.steps.record import unpack_head
from ts.sequences.steps.stores.maintenance import Examined, Maintenance, StoredSequence
from ts.sequences.steps.stores.sequence_rewind import rewind

# The state is a dict that is changed in place. A body: a number to be added, "boom" (the handler fails half way),
# "unsendable" (only this row's result fails), "forget" (the state is dropped).
TOTAL = """
    from ts.sequence import SequenceCache

    calls = []

    class Handler:
        def initialize(self, context):
            self.cache = SequenceCache(context)

        def handle(self, data, context):
            calls.append(len(data))
            return [self.step(context, index, row["body"].decode()) for index, row in enumerate(data)]

        def step(self, context, index, word):
            sequence_id = context.get_sequence_id(index)
            if word == "forget":
                del self.cache[sequence_id]
                return "forgotten"
            if sequence_id not in self.cache:
                self.cache[sequence_id] = {"total": 0}
            state = self.cache[sequence_id]
            state["total"] += 1000 if word in ("boom", "unsendable") else int(word)
            if word == "boom":
                raise ValueError(word)
            if word == "unsendable":
                return object()
            context.set_response_header(index, "x-total", str(state["total"]))
            if word == "0":
                context.set_response_header(index, context.header_key_sequence_end, sequence_id)
            return state["total"]
"""

#: Adds up. A body: a number; "bad" (the row fails after it has appended), "look" (nothing is appended or set).
SUM = """
class Handler:
    def initialize(self, context):
        self.rebuilt = []

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = context.body(index).decode()
        if word == "look":
            return str(context.state.get(index, 0))
        number = int(word) if word.isdigit() else 1000
        context.state[index] = context.state.get(index, 0) + number
        context.state.append(index, number)
        if word == "bad":
            context.fail(index, word, 422)
        return str(context.state[index])

    def rebuild(self, states, entries):
        self.rebuilt.append((list(states), [list(each) for each in entries]))
        return [(state or 0) + sum(numbers) for state, numbers in zip(states, entries)]
"""


def step(
    job_id: str,
    sequence_id: str,
    body: str,
    *,
    request_id: str = "",
    start: bool = False,
    end: bool = False,
    number: int = 0,
    token: str = "",
) -> list[Any]:
    headers = [("ts_request_sequence_id", sequence_id)]
    headers += [("ts_request_id", request_id)] if request_id else []
    headers += [("ts_request_sequence_start", "true")] if start else []
    headers += [("ts_request_sequence_end", "true")] if end else []
    headers += [("ts_request_step", str(number))] if number else []
    headers += [("ts_request_sequence_token", token)] if token else []
    return row(job_id, body.encode(), headers=headers)


def answered(worker: Worker, *rows: list[Any]) -> list[Any]:
    """What each row was told: the body, or the status and cause of an error."""
    results = {result[0]: result for result in worker.infer(*rows)}
    return [_said(results[each[0]]) for each in rows]


#: The ``lifetime`` of sequences that expire as soon as they are idle, and how long ago (seconds) the scheduler has
#: closed one: the clocks of a worker and of its store may differ by what an answer of the store takes.
AT_ONCE = -1.0
JUST_BEFORE = 1.0


def close(worker: Worker, **reasons: str) -> None:
    """The server's scheduler has closed sequences just before, each for a reason."""
    moment = boot_time() - JUST_BEFORE
    worker.runtime.end_sequences([EndedSequence(each, reason, moment) for each, reason in reasons.items()])


def admit(worker: Worker, row: list[Any], active_since: float) -> Any:
    """What a step is told whose sequence the server knows to be active since that moment."""
    worker.admit_frame([row], {row[0]: StepHistory(active_since, False, "")})
    worker.runtime.step()
    return told(worker, row)


def told(worker: Worker, row: list[Any]) -> Any:
    """What a row was told last of all that the worker has sent by now."""
    return _said([result for result in worker.peer.result_rows() if result[0] == row[0]][-1])


def _said(result: Any) -> Any:
    _, _, status, _, _, body, error = result
    return body.decode() if error is None else (status, result.news.cause)


def rewound(store: Maintenance, model: str, sequence_id: str, after: int) -> str:
    """Let a sequence in a store go back; return its new token."""
    made: list[StoredSequence] = []

    def change(found: Examined | None) -> StoredSequence:
        assert found is not None and found.sequence is not None and not found.problems
        made.append(rewind(found.sequence, after))
        return made[-1]

    store.change(model, sequence_id, change)
    there = store.examine_one(model, sequence_id)
    assert there is not None and not there.problems
    return unpack_head(made[-1].head).token


Make = Callable[..., Worker]
