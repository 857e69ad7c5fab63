"""The heap of deadlines."""

import gc
import weakref
from dataclasses import dataclass

from torchserve_py.core.scheduling.deadlines import SMALLEST_CLEANING, Deadlines


@dataclass(eq=False)
class Thing:
    at: float | None
    timer: int = 0

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
    assert not thing.timer


def test_what_is_over_never_comes_out():
    deadlines, thing = Deadlines(), Thing(1.0)
    deadlines.start_timer(thing, 0.0)
    thing.at = None
    assert deadlines.pop(1.0) is None
    assert deadlines.next() is None
    assert not thing.timer


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


def test_a_deadline_that_is_brought_forward_comes_out_once_and_costs_no_look_at_the_others():
    deadlines, thing, other = Deadlines(), Thing(5.0), Thing(6.0)
    deadlines.start_timer(thing, 0.0)
    deadlines.start_timer(other, 0.0)
    thing.at = 2.0
    deadlines.bring_forward(thing, 1.0)
    assert deadlines.next() == 2.0
    assert deadlines.pop(5.5) is thing
    assert deadlines.pop(5.5) is None
    assert deadlines.pop(6.0) is other
    assert len(deadlines) == 0


def test_entries_that_count_no_more_do_not_pile_up():
    deadlines, thing = Deadlines(), Thing(1e6)
    deadlines.start_timer(thing, 0.0)
    for _ in range(20 * SMALLEST_CLEANING):
        thing.at -= 1.0
        deadlines.bring_forward(thing, 0.0)
        assert len(deadlines) <= SMALLEST_CLEANING + 1
    assert deadlines.pop(1e6) is thing
    assert deadlines.pop(1e6) is None


def test_what_has_left_is_not_kept_until_its_deadline():
    deadlines, thing = Deadlines(), Thing(1e6)
    deadlines.start_timer(thing, 0.0)
    deadlines.end_timer(thing)
    left = weakref.ref(thing)
    del thing
    gc.collect()
    assert left() is None
    assert deadlines.pop(2e6) is None
