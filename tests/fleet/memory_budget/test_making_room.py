"""Who goes, and when there will be room."""

import math

from torchserve_py.fleet.memory_budget.making_room import Occupant, room_in, to_unload


def occupant(
    name: str, *, idle_for: float | None = 1.0, frees: int = 100, priority: int = 0, stays_for: float = 0.0
) -> Occupant:
    return Occupant(name, priority, idle_for, stays_for, {"host": frees})


def names(going: list[Occupant]) -> list[str]:
    return [each.model for each in going]


def test_who_was_idle_for_longest_goes_first() -> None:
    occupants = [occupant("a", idle_for=3), occupant("b", idle_for=9), occupant("c", idle_for=5)]
    assert names(to_unload(occupants, {"host": 150})) == ["b", "c"]


def test_a_lower_priority_goes_first_however_short_it_was_idle() -> None:
    occupants = [occupant("a", idle_for=100), occupant("b", idle_for=1, priority=-1)]
    assert names(to_unload(occupants, {"host": 50})) == ["b"]


def test_nobody_goes_who_works_or_was_loaded_just_now() -> None:
    occupants = [occupant("works", idle_for=None), occupant("new", stays_for=2.0), occupant("idle")]
    assert names(to_unload(occupants, {"host": 100})) == ["idle"]


def test_nobody_goes_in_vain() -> None:
    assert to_unload([occupant("a"), occupant("b", idle_for=None)], {"host": 150}) == []


def test_who_is_not_needed_besides_a_large_one_stays() -> None:
    occupants = [occupant("small", idle_for=9, frees=10), occupant("large", idle_for=1, frees=500)]
    assert names(to_unload(occupants, {"host": 400})) == ["large"]


def test_only_who_frees_what_is_lacking_goes() -> None:
    on_gpu = Occupant("gpu", 0, 1.0, 0.0, {"host": 10, "gpu 0": 100})
    assert names(to_unload([occupant("host", idle_for=9), on_gpu], {"gpu 0": 50})) == ["gpu"]


def test_room_is_there_at_once_if_nothing_is_lacking_or_idle_ones_can_go() -> None:
    assert room_in([], {}, works_for=9.0) == 0.0
    assert room_in([occupant("a")], {"host": 50}, works_for=9.0) == 0.0


def test_room_is_there_once_enough_may_go() -> None:
    occupants = [occupant("a"), occupant("b", stays_for=3.0), occupant("c", stays_for=7.0)]
    assert room_in(occupants, {"host": 150}, works_for=9.0) == 3.0


def test_one_that_works_is_expected_to_go_on() -> None:
    assert room_in([occupant("a", idle_for=None)], {"host": 50}, works_for=4.0) == 4.0


def test_there_is_never_room_if_all_together_do_not_free_enough() -> None:
    assert room_in([occupant("a")], {"host": 150}, works_for=4.0) == math.inf
