"""When the next worker of a place starts, by what its predecessors have done."""

from torchserve_py.core.workers.restarts import GIVEN_UP_DELAY, PLACE_DELAY, RESTART_DELAYS, Restarts


def after(restarts: Restarts, *deaths: tuple[float, float, bool]) -> list[float]:
    """Return the delays after deaths, each given with its moment, the seconds of life, and whether there was work."""
    delays = []
    for now, ready_for, has_worked in deaths:
        restarts.was_ready(ready_for, has_worked=has_worked)
        delays.append(restarts.failed(now))
    return delays


def test_a_worker_that_has_worked_is_replaced_at_once_however_often_it_dies():
    restarts = Restarts(300)
    assert after(restarts, *((0.2 * n, 0.1, True) for n in range(1000))) == [0] * 1000
    assert restarts.is_worth_waiting(200)


def test_a_request_that_kills_two_workers_costs_no_delay():
    restarts = Restarts(300)
    assert after(restarts, *((0.5 * n, 0.1, n % 2 == 0) for n in range(100))) == [0] * 100


def test_a_worker_that_lives_without_work_is_no_failure():
    assert after(Restarts(300), *((20.0 * n, 11.0, False) for n in range(10))) == [0] * 10


def test_the_delays_of_workers_that_do_nothing_grow():
    restarts, now, delays = Restarts(300), 0.0, []
    for _ in range(len(RESTART_DELAYS)):
        delays += after(restarts, (now, 0.1, False))
        now += delays[-1] + 0.1
    assert tuple(delays) == RESTART_DELAYS


def test_requests_wait_for_ten_seconds_of_failing():
    restarts = Restarts(300)
    restarts.failed(0.0)
    assert restarts.is_worth_waiting(10.0)
    assert not restarts.is_worth_waiting(10.1)
    restarts.was_ready(0.1, has_worked=False)
    assert restarts.is_worth_waiting(10.1)


def test_requests_wait_while_workers_load_that_will_be_killed_by_a_suspect():
    """A worker that loads for a minute has not failed, whatever its predecessor did."""
    restarts = Restarts(300)
    restarts.was_ready(100.0, has_worked=True)
    restarts.failed(0.0)
    restarts.was_ready(0.1, has_worked=False)
    restarts.failed(60.0)
    assert restarts.is_worth_waiting(60.0)


def test_requests_do_not_wait_through_long_delays():
    restarts, now = Restarts(300), 0.0
    delays = []
    while not delays or restarts.is_worth_waiting(now):
        delays += after(restarts, (now, 0.1, False))
    assert delays[-2:] == [8, 13]


def test_what_was_given_up_is_tried_once_a_minute_for_ever():
    restarts = Restarts(300)
    restarts.failed(0.0)
    assert [restarts.failed(300.1 + 60 * n) for n in range(1000)] == [GIVEN_UP_DELAY] * 1000
    assert restarts.is_given_up(61_000)
    restarts.was_ready(20.0, has_worked=False)
    assert not restarts.is_given_up(61_000)


def test_time_without_room_is_no_time_of_failing():
    restarts = Restarts(300)
    restarts.failed(0.0)
    assert [restarts.found_no_room(now) for now in (100.0, 200.0, 1000.0)] == [PLACE_DELAY] * 3
    assert restarts.failed(1001.0) == RESTART_DELAYS[1]
    assert restarts.is_worth_waiting(1001.0)
    assert restarts.failed(2000.0, waited=999.0) == RESTART_DELAYS[2]
    assert not restarts.is_given_up(2000.0)
