"""The heap of deadlines."""

from dataclasses import dataclass

from torchserve_py.scheduling.deadlines import SMALLEST_CLEANING, Deadlines


@dataclass(eq=False)
class Thing:
    at: float | None
    has_timer: bool = False

    def due(self, now: float) -> float | None:
        return self.at


def test_things_come_out_when_they_are_due_the_earliest_first():
    deadlines, late, early = Deadlines(), Thing(2.0), Thing(1.0)
    deadlines.start_timer(late, 0.0)
    deadlines.start_timer(early, 0.0)
    assert deadlines.next() == 1.0
    assert deadlines.pop(0.9) is None
    assert deadlines.pop(2.0) is early
    assert deadlines.pop(2.0) is late
    assert deadlines.pop(2.0) is None
    assert deadlines.next() is None


def test_a_deadline_that_moved_later_is_asked_again_when_its_entry_is_reached():
    deadlines, thing = Deadlines(), Thing(1.0)
    deadlines.start_timer(thing, 0.0)
    thing.at = 5.0
    deadlines.start_timer(thing, 0.5)
    assert len(deadlines) == 1
    assert deadlines.next() == 1.0
    assert deadlines.pop(1.0) is None
    assert deadlines.next() == 5.0
    assert deadlines.pop(5.0) is thing
    assert not thing.has_timer


def test_what_is_over_never_comes_out():
    deadlines, thing = Deadlines(), Thing(1.0)
    deadlines.start_timer(thing, 0.0)
    thing.at = None
    assert deadlines.pop(1.0) is None
    assert deadlines.next() is None
    assert not thing.has_timer


def test_what_has_no_deadline_is_not_watched():
    deadlines = Deadlines()
    deadlines.start_timer(Thing(None), 0.0)
    assert deadlines.next() is None


def test_the_heap_stays_in_proportion_to_what_is_alive():
    deadlines = Deadlines()
    alive = [Thing(1e6 + number) for number in range(100)]
    for thing in alive:
        deadlines.start_timer(thing, 0.0)
    for number in range(20 * SMALLEST_CLEANING):
        passing = Thing(1e6 + number)
        deadlines.start_timer(passing, 0.0)
        passing.at = None
        assert len(deadlines) <= SMALLEST_CLEANING
    assert [deadlines.pop(2e6) for _ in alive] == alive
