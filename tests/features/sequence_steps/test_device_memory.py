"""When the memory of a device is exhausted, states that nobody uses make room before a client hears of it."""

import pytest
from tests.features.sequence_steps.stepping import Make, answered, step
from tests.unit.ts.frontend_stub import Worker

#: A handler whose states are on a stand-in of a GPU that has room for three of them; a step needs the state before and
#: the one after. Bodies: a number to be added; "greedy" needs more than there is; "stream" is out of memory after a
#: part of its answer.
TOTALS = """
    from ts.handler_utils.utils import send_intermediate_predict_response
    from ts.sequence import SequenceCache

    ROOM = 3
    calls = []

    class Total:
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
        return [stepped(index, row["body"].decode(), context) for index, row in enumerate(data)]

    def stepped(index, body, context):
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


def test_more_states_than_the_device_holds_are_served_one_by_one(worker: Worker) -> None:
    names = [f"s{number}" for number in range(6)]
    for turn in range(1, 4):
        for number, name in enumerate(names):
            row = step(f"{name} {turn}", name, str(number), number=turn, token=f"t{number}")
            assert answered(worker, row) == [str(turn * number)]
    assert len(worker.module.calls) > 18, "some steps ran again, once there was room"


def test_a_batch_begins_again_as_a_whole_and_each_of_its_steps_counts_once(worker: Worker) -> None:
    for name in ("idle", "mine"):
        assert answered(worker, step(f"j-{name}", name, "5", number=1, token=name)) == ["5"]
    worker.module.calls.clear()
    fresh = step("j1", "fresh", "1", number=1, token="fresh")
    assert answered(worker, fresh, step("j2", "mine", "2", number=2, token="mine")) == ["1", "7"]
    assert worker.module.calls == [2, 2]
    assert answered(worker, step("j3", "mine", "2", number=2, token="mine")) == ["7"], "the kept answer"
    assert answered(worker, step("j4", "idle", "1", number=2, token="idle")) == ["6"]


def test_what_needs_more_than_there_is_gets_507_and_costs_nobody_a_step(worker: Worker) -> None:
    for name in ("other", "mine"):
        assert answered(worker, step(f"j-{name}", name, "5", start=True)) == ["5"]
    worker.module.calls.clear()
    assert answered(worker, step("j1", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1, 1], "once more with room, and then no more"
    assert answered(worker, step("j2", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1, 1, 1], "there was nobody to make room"
    assert answered(worker, step("j3", "mine", "1")) == ["6"]
    assert answered(worker, step("j4", "other", "1")) == ["6"]


def test_a_step_that_has_sent_a_part_does_not_begin_again(worker: Worker) -> None:
    for name in ("other", "mine"):
        assert answered(worker, step(f"j-{name}", name, "5", start=True)) == ["5"]
    worker.module.calls.clear()
    assert answered(worker, step("j1", "mine", "stream")) == [(507, "")]
    assert worker.module.calls == [1]
    assert answered(worker, step("j2", "mine", "1")) == ["6"]


@pytest.mark.parametrize("kind", ["memory"])
def test_nothing_begins_again_where_the_states_are_in_memory_only(durable_worker: Make) -> None:
    worker = durable_worker(TOTALS, store="memory", module="", durable=False)
    for name in ("other", "mine"):
        assert answered(worker, step(f"j-{name}", name, "5", start=True)) == ["5"]
    worker.module.calls.clear()
    assert answered(worker, step("j1", "mine", "greedy")) == [(507, "")]
    assert worker.module.calls == [1]
    assert answered(worker, step("j2", "other", "1")) == ["6"]
