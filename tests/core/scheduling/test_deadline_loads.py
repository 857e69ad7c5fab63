"""More and more periodic sessions on a simulated clock: how many are in time, and that none suffers for others."""

from benchmarks.deadlines import ALIGNED, MIX, Kind, Way, knee, serve

SECONDS = 4.0
EVEN = (Kind("sound", 0.020, 0.0005), Kind("control", 0.100, 0.0005), Kind("speech", 0.500, 0.0005))


def test_deadlines_serve_many_more_sessions_where_most_send_at_the_same_moment():
    assert knee(Way.deadlines, SECONDS, ALIGNED) >= 1.5 * knee(Way.first_come, SECONDS, ALIGNED)


def test_deadlines_serve_more_sessions_where_steps_differ():
    assert knee(Way.deadlines, SECONDS, MIX) >= 1.5 * knee(Way.first_come, SECONDS, MIX)


def test_no_accepted_session_is_hurt_by_three_times_as_many_as_can_be_served():
    most = knee(Way.deadlines, SECONDS, EVEN)
    without, accepted = serve(Way.first_come, 3 * most, SECONDS, EVEN), serve(Way.guarantee, 3 * most, SECONDS, EVEN)
    assert without.in_time < 0.5
    assert accepted.worst == 1.0, "an accepted session had a late step"
    assert accepted.accepted >= 5


def test_at_nine_tenths_of_what_is_accepted_no_step_is_late():
    offered = round(0.9 * serve(Way.guarantee, 200, SECONDS, EVEN).accepted)
    assert serve(Way.guarantee, offered, SECONDS, EVEN).worst == 1.0
