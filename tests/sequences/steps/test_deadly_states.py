"""A stored state that ends each worker which reads it: two die of it, and from then on its sequence is damaged."""

from pathlib import Path

import pytest
from tests.sequences.steps.stepping import Make, answered, step, told
from tests.unit.ts.frontend_stub import Worker

from ts.protocol.messages import StepHistory
from ts.sequences.steps.stores.maintenance import Maintenance
from ts.sequences.steps.stores.store import ENDS_WORKERS

DAMAGED = (500, "state_damaged")
RUNS_AGAIN = StepHistory(0.0, was_sent=True, asks_after="")
ASKS = StepHistory(0.0, was_sent=True, asks_after="worker_died")

#: A sum, a body that is no number fails the step. What reads a state follows.
_SUM = """
    from fractions import Fraction
    from ts.sequence import SequenceCache

    class Handler:
        def initialize(self, context):
            SequenceCache(context, encoders={{Fraction: (str, {read})}})

        def handle(self, data, context):
            return [self.step(context, index) for index in range(len(data))]

        def step(self, context, index):
            context.state[index] = context.state.get(index, Fraction(0)) + int(context.body(index))
            return str(context.state[index])
"""
READS = _SUM.format(read="Fraction")
DIES = _SUM.format(read="lambda plain: sys.exit()").replace("from frac", "import sys\n    from frac", 1)

_LOG = """
    class Handler:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            return [self.step(context, index) for index in range(len(data))]

        def step(self, context, index):
            context.state[index] = context.state.get(index, 0) + int(context.body(index))
            context.state.append(index, int(context.body(index)))
            return str(context.state[index])

        def rebuild(self, states, entries):
            {rebuild}
"""
REBUILDS = _LOG.format(rebuild="return [(state or 0) + sum(new) for state, new in zip(states, entries)]")
DIES_IN_REBUILD = _LOG.format(rebuild="raise SystemExit")


@pytest.fixture(params=[(READS, DIES), (REBUILDS, DIES_IN_REBUILD)], ids=["state", "log"])
def sources(request: pytest.FixtureRequest, durable_worker: Make) -> tuple[str, str]:
    """Handlers that read what is stored, and that die of it: the sum of the sequence ``s`` is 5."""
    reads, dies = request.param
    assert answered(durable_worker(reads), step("j0", "s", "5")) == ["5"]
    return reads, dies


def deliver(worker: Worker, history: StepHistory, body: str = "1") -> object:
    """What the step after the first one is told."""
    row = step("j1", "s", body)
    worker.admit_frame([row], {"j1": history})
    worker.runtime.step()
    return told(worker, row)


def die_twice(durable_worker: Make, dies: str) -> None:
    with pytest.raises(SystemExit):
        answered(durable_worker(dies), step("j1", "s", "1"))
    with pytest.raises(SystemExit):
        deliver(durable_worker(dies), RUNS_AGAIN)


def test_the_third_worker_and_all_later_ones_answer(durable_worker: Make, sources: tuple[str, str]) -> None:
    die_twice(durable_worker, sources[1])
    assert deliver(durable_worker(sources[1]), ASKS) == DAMAGED
    later = durable_worker(sources[0])
    assert answered(later, step("j2", "s", "1"), step("j3", "other", "2")) == [DAMAGED, "2"]
    assert answered(later, step("j4", "s", "3", start=True)) == ["3"]
    assert answered(later, step("j5", "s", "4")) == ["7"]


def test_who_only_asks_reads_nothing(durable_worker: Make, sources: tuple[str, str]) -> None:
    asked = durable_worker(sources[1])
    assert deliver(asked, ASKS) == (500, "worker_died")
    assert answered(durable_worker(sources[0]), step("j2", "s", "1")) == ["6"]


def test_what_a_worker_survives_is_no_damage(durable_worker: Make, sources: tuple[str, str]) -> None:
    assert deliver(durable_worker(sources[0]), RUNS_AGAIN, "no number")[0] == 503  # type: ignore[index]
    assert answered(durable_worker(sources[0]), step("j2", "s", "1")) == ["6"]
    assert deliver(durable_worker(sources[0]), RUNS_AGAIN, "2") == "8"
    assert answered(durable_worker(sources[0]), step("j3", "s", "1")) == ["9"]


def test_an_operator_finds_it_and_lets_it_be_tried_again(
    durable_worker: Make, sources: tuple[str, str], maintenance: Maintenance, tmp_path: Path
) -> None:
    die_twice(durable_worker, sources[1])
    found = maintenance.examine_one(tmp_path.name, "s")
    assert found is not None and list(found.problems) == [ENDS_WORKERS]
    repaired = [each for each in maintenance.repair() if each.model == tmp_path.name]
    assert [ENDS_WORKERS in each.what for each in repaired] == [True]
    assert answered(durable_worker(sources[0]), step("j2", "s", "1")) == ["6"]
