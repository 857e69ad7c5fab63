"""The benchmark of sessions notices what a server does wrong, and reports what clients waited for."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest
from aiohttp import web
from benchmarks.sessions.checker import Checker, Verdict
from benchmarks.sessions.measure import measure
from benchmarks.sessions.plan import Offered, sessions_of
from benchmarks.sessions.report import Report
from benchmarks.sessions.state import State

OFFERED = Offered(rate=40.0, period=0.02, steps=6, seconds=0.5, leaving=0.5, away=0.1)


def state_after(*numbers: int) -> State:
    state = State()
    for number in numbers:
        state = state.after(number)
    return state


@pytest.mark.parametrize(
    ("applied", "verdict"),
    [
        ((3, 4, 5), Verdict.RIGHT),
        ((3, 5), Verdict.LOST),
        ((3, 4, 5, 5), Verdict.DOUBLED),
        ((4, 3, 5), Verdict.REORDERED),
        ((5,), Verdict.LOST),
    ],
)
def test_a_state_is_judged(applied: tuple[int, ...], verdict: Verdict) -> None:
    checker = Checker()
    checker.answered(3, state_after(3))
    checker.answered(4, state_after(3, 4))
    assert checker.answered(5, state_after(*applied)) is verdict
    # The fault counts once: what follows on that state is right.
    assert checker.answered(6, state_after(*applied, 6)) is Verdict.RIGHT
    assert (checker.lost, checker.doubled, checker.reordered) == (
        max(0, 3 - len(applied)),
        max(0, len(applied) - 3),
        int(verdict is Verdict.REORDERED),
    )


def test_a_plan_is_an_open_load() -> None:
    offered = Offered(rate=20.0, period=0.1, steps=10, seconds=50.0, leaving=0.3, away=7.0)
    sessions = sessions_of(offered)
    assert sessions == sessions_of(offered)
    assert sessions != sessions_of(replace(offered, seed=2))
    assert 850 < len(sessions) < 1150
    gaps = [[late.due - early.due for early, late in pairwise(steps)] for steps in sessions]
    assert all(gap == pytest.approx(0.1) for each in gaps for index, gap in enumerate(each) if index != 4)
    away = [each[4] for each in gaps if each[4] > 1]
    assert away == pytest.approx([7.1] * len(away))
    assert 0.2 < len(away) / len(sessions) < 0.4


class Counter:
    """A server with the model. ``fault`` is what it does to each session's fourth step."""

    def __init__(self, fault: str = "", seconds: float = 0.0) -> None:
        self.fault = fault
        self.seconds = seconds
        self.states: dict[str, State] = {}
        self.failed: set[str] = set()

    async def step(self, request: web.Request) -> web.Response:
        step = await request.json()
        session, before = step["session"], self.states.get(step["session"], State())
        await asyncio.sleep(self.seconds)
        if self.fault == "full" and step["start"]:
            return web.Response(status=503, text="no room")
        after = before.after(step["number"])
        if before.count == 3 and session not in self.failed:
            self.failed.add(session)
            if self.fault == "gone":
                return web.Response(status=410, text="lost")
            if self.fault == "lost":
                after = State().after(step["number"])
            if self.fault == "unanswered":  # applied, and the answer does not arrive: the client sends it again
                self.states[session] = after
                return web.Response(status=500)
        self.states[session] = after
        return web.json_response(f"{after.count} {after.checksum}")


async def report_of(counter: Counter) -> Report:
    application = web.Application()
    application.router.add_post("/", counter.step)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        return await measure("a server", "json", f"http://127.0.0.1:{port}/", {}, OFFERED)
    finally:
        await runner.cleanup()


async def test_a_right_server_has_no_fault() -> None:
    report = await report_of(Counter())
    assert report.offered == report.completed > 5
    assert (report.lost_steps, report.doubled_steps, report.reordered) == (0, 0, 0)


async def test_faults_of_a_server_are_found() -> None:
    lost = await report_of(Counter("lost"))
    assert (lost.completed, lost.lost_steps, lost.doubled_steps) == (lost.offered, 3 * lost.offered, 0)
    doubled = await report_of(Counter("unanswered"))
    assert (doubled.completed, doubled.lost_steps, doubled.doubled_steps) == (doubled.offered, 0, doubled.offered)
    gone = await report_of(Counter("gone"))
    assert (gone.completed, gone.lost, gone.lost_steps) == (0, gone.offered, 3 * gone.offered)
    assert gone.in_time <= 0.5  # the steps that were never sent count
    full = await report_of(Counter("full"))
    assert (full.completed, full.refused, full.lost_steps) == (0, full.offered, 0)


async def test_lateness_counts_from_the_moment_at_which_a_step_was_due() -> None:
    report = await report_of(Counter(seconds=2 * OFFERED.period))
    assert report.in_time == 0.0
    # A step waits for the one before: the last of six is late by more than five times what each takes too long.
    assert report.gap > 1000 * 5 * OFFERED.period
