"""How long steps of sequences take is learnt from whole batches, if that tells more than the sizes of the batches."""

from collections.abc import Callable
from random import Random

import pytest

from torchserve_py.core.scheduling.policy import SequencePolicy
from torchserve_py.core.scheduling.sequence import Sequence, SequenceLane
from torchserve_py.core.scheduling.sequence_times import SequenceTimes

LANE = SequenceLane("w", 16, 0.0, SequencePolicy(60.0), None)


def learnt(seconds: Callable[[list[float]], float], batches: int = 300) -> tuple[SequenceTimes, list[Sequence]]:
    """Return what was learnt from batches of any of eight sequences, of which each second one takes 8 ms for a step."""
    random, times = Random(1), SequenceTimes()
    sequences = [Sequence(f"s{number}", LANE, (), 1e9, 0.0, 0.0) for number in range(8)]
    for _ in range(batches):
        batch = random.sample(range(8), random.randint(1, 4))
        took = seconds([0.008 if each % 2 else 0.0002 for each in batch])
        times.learn([sequences[each] for each in batch], took * (1 + random.expovariate(20)))
    return times, sequences


def test_the_times_of_long_and_short_steps_are_told_apart() -> None:
    times, (short, long, also_short, also_long, *_) = learnt(lambda steps: 0.001 + sum(steps))
    shorts, longs = times.at_most([short, also_short]), times.at_most([long, also_long])
    assert shorts is not None
    assert longs is not None
    assert 0.0012 <= shorts[0] <= 0.004
    assert 0.0014 <= shorts[1] <= 0.005
    assert longs[1] >= 0.017


def test_a_sequence_of_which_nothing_is_known_counts_as_the_longest() -> None:
    times, (short, long, *_) = learnt(lambda steps: 0.001 + sum(steps))
    unknown, known = times.at_most([short, None]), times.at_most([short, long])
    assert unknown is not None
    assert known is not None
    assert unknown[1] >= known[1]


@pytest.mark.parametrize("batches", [0, 1, 300])
def test_where_a_batch_takes_as_long_whatever_is_in_it_nothing_is_said(batches: int) -> None:
    times, sequences = learnt(lambda _: 0.01, batches)
    assert times.at_most(sequences) is None
