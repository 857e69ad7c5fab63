"""When the memory of a device is exhausted, states that nobody uses make room before a client hears of it."""

from random import Random
from typing import Any

import pytest
from tests.sequences.steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

#: A handler whose states are on a stand-in of a GPU that has room for three of them; a step needs the state before and
#: the one after. Bodies: a number to be added; "spoil" before it is taken from the body in place; "greedy" needs more
#: than there is; "stream" is out of memory after a part of its answer.
TOTALS = """
    from ts.handler_utils.utils import send_intermediate_predict_response
    from ts.sequence import SequenceCache

    ROOM = 3
    calls = []

    class Total:
        __module__ = "totals"  # another worker knows it by the same name
        count = 0

        def __init__(self, value):
            if Total.count == ROOM:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            Total.count += 1
            self.value = value

        def __del__(self):
            Total.count -= hasattr(self, "value")

    def handle(data, context):
        if data is None:
            SequenceCache(context, encoders={Total: (lambda total: total.value, Total)})
            return None
        calls.append(len(data))
        return [stepped(index, row["body"], context) for index, row in enumerate(data)]

    def stepped(index, raw, context):
        raw[:] = raw.removeprefix(b"spoil")
        body = raw.decode()
        if body == "stream":
            send_intermediate_predict_response(["part"], context.request_ids, "", 200, context)
        extra = [Total(0) for _ in range(ROOM)] if body in ("greedy", "stream") else []
        total = context.state.get(index)
        after = Total(int(body) + (0 if total is None else total.value))
        context.state[index] = after
        return after.value
"""


@pytest.fixture
def worker(durable_worker: Make) -> Worker:
    return durable_worker(TOTALS)


def begin(worker: Worker, *names: str) -> None:
    """Begin these sequences, each with 5, and forget the calls."""
    for name in names:
        assert answered(worker, step(f"j-{name}", name, "5", number=1, token=name)) == ["5"]
    worker.module.calls.clear()


def further(job_id: str, name: str, body: str, number: int = 2) -> Any:
    return step(job_id, name, body, number=number, token=name)


def test_more_states_than_the_device_holds_are_served_one_by_one(worker: Worker) -> None:
    names = [f"s{number}" for number in range(6)]
    for turn in range(1, 4):
        for number, name in enumerate(names):
            row = step(f"{name} {turn}", name, str(number), number=turn, token=f"t{number}")
            assert answered(worker, row) == [str(turn * number)]
    assert len(worker.module.calls) > 18, "some steps ran again, once there was room"


def test_a_batch_begins_again_as_a_whole_and_each_of_its_steps_counts_once(worker: Worker) -> None:
    begin(worker, "idle", "mine")
    assert answered(worker, further("j1", "fresh", "1", 1), further("j2", "mine", "2")) == ["1", "7"]
    assert worker.module.calls == [2, 2]
    assert answered(worker, further("j3", "mine", "2")) == ["7"], "the kept answer"
    assert answered(worker, further("j4", "idle", "1")) == ["6"]


def test_a_row_that_was_answered_before_the_handler_ran_is_not_answered_again(worker: Worker) -> None:
    begin(worker, "idle", "again", "mine")
    repeated = further("j1", "again", "5", 1)
    sent = worker.infer(repeated, further("j2", "mine", "2"), further("j3", "fresh", "1", 1))
    assert sorted((row[0], row[5]) for row in sent) == [("j1", b"5"), ("j2", b"7"), ("j3", b"1")]
    assert worker.module.calls == [2, 2], "the repeated one did not run"


def test_a_state_that_is_read_takes_no_room_from_the_others_of_its_batch(durable_worker: Make) -> None:
    first = durable_worker(TOTALS)
    begin(first, "stored")
    first.runtime.close()
    worker = durable_worker(TOTALS)
    begin(worker, "here", "idle", "idle too")
    assert answered(worker, further("j1", "here", "1"), further("j2", "stored", "1")) == ["6", "6"]
    assert worker.module.calls == [2]
    assert answered(worker, further("j3", "idle", "1")) == ["6"]


def large(row: Any, body: bytes) -> Any:
    return row._replace(body=bytearray(body))


def test_a_large_body_is_given_to_the_handler_again_if_it_has_not_changed_it(worker: Worker) -> None:
    begin(worker, "idle", "idle too", "mine")
    assert answered(worker, large(further("j1", "mine", ""), b"2".zfill(2_000))) == ["7"]
    assert worker.module.calls == [1, 1]
    assert answered(worker, large(further("j2", "mine", ""), b"2".zfill(2_000))) == ["7"], "the kept answer"


def test_a_large_body_that_the_handler_has_changed_is_not_given_to_it_again(worker: Worker) -> None:
    begin(worker, "idle", "idle too", "mine")
    assert answered(worker, large(further("j1", "mine", ""), b"spoil" + b"2".zfill(2_000))) == [(507, "")]
    assert worker.module.calls == [1]
    assert answered(worker, further("j2", "mine", "2")) == ["7"], "there is room now"


def test_what_needs_more_than_there_is_gets_507_and_costs_nobody_a_step(worker: Worker) -> None:
    begin(worker, "other", "mine")
    assert answered(worker, step("j1", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1, 1], "once more with room, and then no more"
    assert answered(worker, step("j2", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1, 1, 1], "there was nobody to make room"
    assert answered(worker, step("j3", "mine", "1")) == ["6"]
    assert answered(worker, step("j4", "other", "1")) == ["6"]


def test_a_step_that_has_sent_a_part_does_not_begin_again(worker: Worker) -> None:
    begin(worker, "other", "mine")
    assert answered(worker, step("j1", "mine", "stream")) == [(507, "")]
    assert worker.module.calls == [1]
    assert answered(worker, step("j2", "mine", "1")) == ["6"]


@pytest.mark.parametrize("kind", ["memory"])
def test_nothing_begins_again_where_the_states_are_in_memory_only(durable_worker: Make) -> None:
    worker = durable_worker(TOTALS, store="memory", module="", durable=False)
    begin(worker, "other", "mine")
    assert answered(worker, step("j1", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1]
    assert answered(worker, step("j2", "other", "1")) == ["6"]


#: The same with room for four, whose states are made of logs. It adds to the states in place.
LOGGED = (
    TOTALS.replace("ROOM = 3", "ROOM = 4")
    .replace("def handle(", "def handled(")
    .replace("return after.value", "context.state.append(index, int(body)); return after.value")
    + """
    rebuilt = []

    class Handler:
        def initialize(self, context):
            handled(None, context)

        def handle(self, data, context):
            return handled(data, context)

        def rebuild(self, states, entries):
            rebuilt.append((len(states), all(states)))
            for index, numbers in enumerate(entries):
                states[index] = Total(0) if states[index] is None else states[index]
                while numbers:
                    if numbers[0] > 100:
                        raise ValueError("too large")
                    states[index].value += numbers.pop(0)
            return states
"""
)


def test_states_that_are_made_of_logs_find_room(durable_worker: Make) -> None:
    first = durable_worker(LOGGED)
    begin(first, "a", "b")
    first.runtime.close()
    worker = durable_worker(LOGGED)
    begin(worker, "idle", "idle too", "here")
    assert answered(worker, further("j1", "here", "1"), further("j2", "a", "1"), further("j3", "b", "1")) == ["6"] * 3
    assert worker.module.rebuilt == [(2, False), (2, False)]
    assert answered(worker, further("j4", "idle", "1")) == ["6"]


def test_a_rebuild_that_fails_half_way_spoils_no_state_of_the_others(durable_worker: Make) -> None:
    first = durable_worker(LOGGED.replace("ROOM = 4", "ROOM = 9"), checkpoint_steps=3)
    for number in range(1, 6):
        rows = [step(f"{name} {number}", name, "5", number=number, token=name) for name in ("a", "b")]
        assert answered(first, *rows, step(f"c {number}", "c", "500", number=number, token="c"))[0] == str(5 * number)
    first.runtime.close()
    worker = durable_worker(LOGGED.replace("ROOM = 4", "ROOM = 9"))
    told = answered(worker, *(further(f"j-{name}", name, "1", 6) for name in "abc"))
    assert told == ["26", "26", (500, "handler_error")]
    assert worker.module.rebuilt == [(3, True), (1, True), (1, True), (1, True)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("source", [TOTALS, LOGGED], ids=["whole", "logged"])
def test_totals_are_right_and_each_job_is_answered_once(
    durable_worker: Make, source: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    random, names = Random(seed), [f"s{number}" for number in range(8)]
    totals, numbers = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    sent_last: dict[str, str] = {}
    source = source.replace("ROOM = 3", "ROOM = 4")
    worker = durable_worker(source, checkpoint_steps=3)
    refused = 0
    for turn in range(80):
        if random.random() < 0.1:
            worker.runtime.close()
            worker = durable_worker(source, checkpoint_steps=3)
        rows, expected = [], {}
        for name in random.sample(names, random.randint(1, 3)):
            if numbers[name] and random.random() < 0.25:
                word = sent_last[name]
                expected[f"{turn} {name}"] = (name, totals[name], numbers[name], word)
            else:
                word = str(random.randint(1, 50))
                expected[f"{turn} {name}"] = (name, totals[name] + int(word), numbers[name] + 1, word)
            rows.append(further(f"{turn} {name}", name, word, expected[f"{turn} {name}"][2]))
        sent = worker.infer(*rows)
        assert sorted(row[0] for row in sent) == sorted(expected)
        for job_id, _, status, _, _, body, error in sent:
            name, total, number, word = expected[job_id]
            if error is None:
                assert (int(body), job_id) == (total, job_id)
                totals[name], numbers[name], sent_last[name] = total, number, word
            else:
                assert status == 507, error
                refused += 1
    assert "idle states leave it" in caplog.text
    assert refused < 40
