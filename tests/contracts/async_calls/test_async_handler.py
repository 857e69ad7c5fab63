"""Asynchronous handlers: requests that overlap, their contexts, streams and cancellations, in a real process."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import DEADLINE_SECONDS, OK, Peer, row

#: ``hold NAME`` waits until ``release NAME`` comes; ``parts`` streams; ``cancelled`` tells who was cancelled.
HANDLER = """
    import asyncio

    from ts.handler_utils.utils import send_intermediate_predict_response as send
    from ts.jobs.errors import JobsCancelled


    class Handler:
        async def initialize(self, context):
            self.events = {}
            self.cancelled = []
            context.hung_on = asyncio.get_running_loop()

        def event(self, name):
            return self.events.setdefault(name, asyncio.Event())

        async def handle(self, data, context):
            assert len(data) == 1 and list(context.request_ids) == [0]
            command, _, name = data[0]["body"].decode().partition(" ")
            context.set_response_header(0, "told", command)
            return [await getattr(self, command)(name, context)]

        async def hold(self, name, context):
            try:
                await self.event(name).wait()
            except asyncio.CancelledError:
                self.cancelled.append(context.get_request_id())
                raise
            return f"{name} for {context.get_request_id()}"

        async def release(self, name, context):
            self.event(name).set()
            return context.hung_on is asyncio.get_running_loop()

        async def told(self, name, context):
            return self.cancelled

        async def stream(self, name, context):
            for number in range(2):
                send([f"{name}{number}"], context.request_ids, "ok", 200, context)
                await self.event(f"{name}{number}").wait()
            return "end"

        async def give_up(self, name, context):
            try:
                send([None], context.request_ids, "no tea", 418, context)
            except JobsCancelled:
                await self.event("never").wait()

        async def take_turns(self, name, context):
            for _ in range(100):
                await asyncio.sleep(0)
            return name

        async def stubborn(self, name, context):
            try:
                await self.event("never").wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                return "done all the same"

        async def own_cancellation(self, name, context):
            raise asyncio.CancelledError

        async def own_task(self, name, context):
            asyncio.current_task().cancel()
            await asyncio.sleep(0)

        async def panic(self, name, context):
            raise BaseException(name)

        async def fail(self, name, context):
            raise ValueError(name)

        async def count(self, name, context):
            context.metrics.add_counter("calls", 1, idx=0)
            return name
"""


@pytest.fixture
def jobs(start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]]) -> Peer:
    """The connection to a worker that has loaded `HANDLER`."""
    _, peer, loaded = start(HANDLER)
    assert loaded == OK
    return peer


def infer(jobs: Peer, **commands: str) -> None:
    for job_id, command in commands.items():
        jobs.send("infer", [row(job_id, command.encode())])


def answer(jobs: Peer) -> tuple[str, bool, int, str]:
    """Return job, whether more follows, status and body (or error) of the next result."""
    kind, rows, *_ = jobs.receive()
    assert kind == "results"
    ((job_id, more, status, _, _, body, error, _),) = rows
    return job_id, more, status, body.decode() if error is None else error


def test_answers_come_out_of_order_and_each_call_has_a_context_of_its_own(jobs: Peer) -> None:
    infer(jobs, a="hold x", b="hold y", c="release y")
    assert {answer(jobs), answer(jobs)} == {("c", False, 200, "true"), ("b", False, 200, "y for b")}
    infer(jobs, d="release x")
    assert {answer(jobs), answer(jobs)} == {("d", False, 200, "true"), ("a", False, 200, "x for a")}


def test_response_headers_do_not_mix(jobs: Peer) -> None:
    infer(jobs, a="hold x", b="told")
    assert jobs.receive()[1][0][4] == [["told", "told"]]
    infer(jobs, c="release x")
    told = {result[0]: result[4] for _ in range(2) for result in jobs.receive()[1]}
    assert told == {"a": [["told", "hold"]], "c": [["told", "release"]]}


def test_several_rows_of_one_frame_are_several_calls(jobs: Peer) -> None:
    jobs.send("infer", [row("a", b"hold x"), row("b", b"release x")])
    assert sorted([answer(jobs), answer(jobs)]) == [("a", False, 200, "x for a"), ("b", False, 200, "true")]


def test_two_stream_at_once(jobs: Peer) -> None:
    infer(jobs, a="stream x", b="stream y")
    assert [answer(jobs), answer(jobs)] == [("a", True, 200, "x0"), ("b", True, 200, "y0")]
    for name, job_id in (("y", "b"), ("x", "a")):
        infer(jobs, r=f"release {name}0")
        assert sorted([answer(jobs), answer(jobs)]) == [(job_id, True, 200, f"{name}1"), ("r", False, 200, "true")]
        infer(jobs, r=f"release {name}1")
        last = {result[0]: result for _ in range(2) for result in jobs.receive()[1]}[job_id]
        assert (last[1], last[5]) == (False, b"end")
        assert ["ts_stream_next", "false"] in last[4]


def test_a_cancelled_call_sees_it_and_its_job_is_answered(jobs: Peer) -> None:
    infer(jobs, a="hold x", b="hold x", c="told")
    assert answer(jobs) == ("c", False, 200, "[]")
    jobs.send("cancel", ["a"])
    assert answer(jobs) == ("a", False, 499, "cancelled")
    infer(jobs, c="told", d="release x")
    assert answer(jobs) == ("c", False, 200, '[\n  "a"\n]')
    assert {answer(jobs), answer(jobs)} == {("d", False, 200, "true"), ("b", False, 200, "x for b")}


def test_a_cancellation_that_comes_with_its_job_or_after_the_answer(jobs: Peer) -> None:
    infer(jobs, a="told")
    assert answer(jobs)[0] == "a"
    jobs.send("cancel", ["a"])
    infer(jobs, b="hold x")
    jobs.send("cancel", ["b", "never seen"])
    assert answer(jobs) == ("b", False, 499, "cancelled")
    infer(jobs, a="told")
    assert answer(jobs)[2] == 200


def test_a_handler_that_does_not_obey_is_answered_for(jobs: Peer) -> None:
    infer(jobs, a="stubborn", b="told")
    assert answer(jobs)[0] == "b"
    jobs.send("cancel", ["a"])
    assert answer(jobs) == ("a", False, 499, "cancelled")


def test_an_error_is_that_request_s_alone(jobs: Peer) -> None:
    infer(jobs, a="hold x", b="fail now", c="own_cancellation", d="own_task", e="panic now", f="release x")
    results = {answer(jobs) for _ in range(6)}
    assert results == {
        ("a", False, 200, "x for a"),
        ("b", False, 503, "Prediction failed"),
        ("c", False, 503, "Prediction failed"),
        ("d", False, 503, "Prediction failed"),
        ("e", False, 503, "Prediction failed"),
        ("f", False, 200, "true"),
    }


def test_metrics_belong_to_their_request(jobs: Peer) -> None:
    infer(jobs, a="hold x", b="count y")
    kind, records = jobs.receive()
    assert kind == "metrics"
    assert records[0][0] == "calls"
    assert "b" in records[0]
    assert answer(jobs) == ("b", False, 200, "y")


def test_what_came_before_the_stop_is_answered(
    start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]],
) -> None:
    process, jobs, _ = start(HANDLER)
    jobs.send_together(["infer", [row("a", b"take_turns x")]], ["stop"])
    assert answer(jobs) == ("a", False, 200, "x")
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def test_a_call_that_is_cancelled_holds_up_no_stop(
    start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]],
) -> None:
    process, jobs, _ = start(HANDLER)
    jobs.send_together(["infer", [row("a", b"hold x")]], ["stop"])
    jobs.send("cancel", ["a"])
    assert answer(jobs) == ("a", False, 499, "cancelled")
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def test_a_call_cancelled_after_its_last_answer_is_not_answered_again(jobs: Peer) -> None:
    infer(jobs, a="give_up x", b="told")
    assert answer(jobs) == ("a", False, 418, "no tea")
    assert answer(jobs)[0] == "b"
    jobs.send("cancel", ["a"])
    infer(jobs, c="told")
    assert answer(jobs)[0] == "c"
    infer(jobs, d="told")
    assert answer(jobs)[0] == "d"


def test_it_ends_when_the_frontend_goes_away(start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]]) -> None:
    process, jobs, _ = start(HANDLER)
    infer(jobs, a="hold x", b="told")
    assert answer(jobs)[0] == "b"
    jobs.close()
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def test_a_function_can_be_the_handler(start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]]) -> None:
    _, jobs, loaded = start("async def handle(data, context):\n        return data and ['hello']")
    assert loaded == OK
    infer(jobs, a="")
    assert answer(jobs) == ("a", False, 200, "hello")


@pytest.mark.parametrize(
    ("source", "asynchronous", "told"),
    [
        ("def handle(data, context):\n        return data", True, "asyncCommunication is true, so handle must be"),
        ("async def handle(data, context):\n        return data", False, "that needs asyncCommunication: true"),
        (
            """
            class Handler:
                async def initialize(self, context):
                    pass

                def handle(self, data, context):
                    return data
            """,
            False,
            "initialize is a coroutine",
        ),
    ],
)
def test_coroutines_where_functions_are_expected_and_the_other_way_round(
    start: Callable[..., tuple[subprocess.Popen[str], Peer, Any]], source: str, asynchronous: bool, told: str
) -> None:
    process, _, loaded = start(source, asynchronous=asynchronous)
    assert not loaded["ok"]
    assert told in loaded["message"]
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
