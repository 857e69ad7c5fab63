"""The loop of an asynchronous model: what is logged is about the job that logs it, and about no other."""

import asyncio
from collections.abc import Iterable

from tests.unit.ts.frontend_stub import FrontendStub, row

from ts.contracts.async_calls import event_loop
from ts.contracts.async_calls.async_runtime import AsyncRuntime, FurtherInputs
from ts.protocol.log_records import Ids, running
from ts.protocol.messages import NO_HISTORIES, EndedSequence, Histories, InferRow


class Logging(AsyncRuntime):
    """Notes which requests a record would be about that were logged in each place."""

    def __init__(self) -> None:
        self.about: dict[str, Ids] = {}

    def note(self, place: str) -> None:
        self.about[place] = tuple(running.get()())

    async def run_job(self, wire_row: InferRow, inputs: FurtherInputs, histories: Histories = NO_HISTORIES) -> None:
        await asyncio.sleep(0)
        self.note(f"job {wire_row.job_id}")

    async def is_healthy(self) -> bool:
        self.note("health")
        return True

    async def expose_metrics(self) -> bytes:
        self.note("metrics")
        return b""

    def end_sequences(self, ended: Iterable[EndedSequence]) -> None:
        self.note("sequences")

    async def close(self) -> None:
        self.note("close")


def test_what_is_logged_of_no_job_is_not_about_the_job_before_it(frontend: FrontendStub) -> None:
    connection, peer = frontend.connect()
    runtime = Logging()
    peer.send_together(
        ["infer", [row("a"), row("b")]], ["health", 1], ["expose", 2], ["end_sequence", [["s", "idle"]]], ["stop"]
    )
    event_loop.run(connection, runtime, asyncio.Runner())
    assert runtime.about == {
        "job a": (("a", ""),),
        "job b": (("b", ""),),
        "health": (),
        "metrics": (),
        "sequences": (),
        "close": (),
    }
