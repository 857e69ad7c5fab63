"""A worker from launch to exit, with a real process and a real socket."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from torchserve_py.base.causes import Cause
from torchserve_py.core.jobs.call import Call
from torchserve_py.core.workers.launch_command import Launch
from torchserve_py.core.workers.lifecycle import WorkerLimits, WorkerState
from torchserve_py.core.workers.listener import WorkerListener
from torchserve_py.core.workers.local_launcher import LocalLauncher
from torchserve_py.core.workers.process import WorkerProcess
from torchserve_py.core.workers.startup import Startup, WorkerFailed
from torchserve_py.core.workers.worker import Worker
from ts.protocol.messages import Load

HANDLER = """
import os
import time

from ts.handler_utils.utils import send_intermediate_predict_response


class EchoHandler:
    def initialize(self, context):
        LOADING

    def handle(self, data, context):
        if data[0]["body"] == "sleep":
            open("sleeping", "w").close()
            time.sleep(600)
        elif data[0]["body"] == "garbage":
            self.answer()
        elif data[0]["body"] == "parts":
            for part in "abc":
                send_intermediate_predict_response([part], context.request_ids, "", 200, context)
            open("sent", "w").close()
        return [row["body"] for row in data]
"""
DEADLINE = 60.0
LIMITS = WorkerLimits(connect=60.0, load=60.0, response=60.0, stop=60.0, heartbeat=60.0)


class Owner:
    """Collects what the worker sends."""

    def __init__(self) -> None:
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self.jobs: dict[str, Call] = {}
        #: The bodies that came together, and whether the handler had ended.
        self.passed_on: list[tuple[list[bytes], bool]] = []

    def jobs_of(self, worker: Worker) -> dict[str, Call]:
        return self.jobs

    def results(self, worker: Worker, rows: list[list[Any]], handler_seconds: float, heard_at: float) -> None:
        self.passed_on.append(([row[5] for row in rows], handler_seconds > 0))
        for row in rows:
            if not row[1]:
                del self.jobs[row[0]]
            self.bodies.put_nowait(row[5])

    def taken(self, worker: Worker, job_id: str, count: int) -> None:
        """Of no interest here."""

    def model_metrics(self, entries: list[list[Any]]) -> None:
        """Of no interest here."""

    def cancel(self, job: Call, cause: Cause) -> None:
        """Of no interest here."""

    def take_out(self, worker: Worker) -> None:
        """Of no interest here."""


class Bench:
    """Makes workers."""

    def __init__(self, directory: Path, listener: WorkerListener) -> None:
        self.directory = directory
        self.listener = listener
        self.owner = Owner()

    def worker(self, loading: str = "pass", limits: WorkerLimits = LIMITS, launch: Launch | None = None) -> Worker:
        (self.directory / "handler.py").write_text(HANDLER.replace("LOADING", loading))
        load = Load(
            contract="torchserve",
            runtime="",
            adapters=[],
            forms="",
            model_name="m",
            model_version="1.0",
            model_dir=str(self.directory),
            manifest={},
            handler="handler.py",
            gpu_id=None,
            gpu_room=None,
            batch_size=1,
            continuous=False,
            asynchronous=False,
            sequences=False,
            envelope=None,
            decode_input_request=True,
            limit_max_image_pixels=True,
            server_version="1",
            max_response_size=1000,
            max_call_size=0,
            preparations={},
            protocols={},
            observers={},
            metrics=[],
            processors=1,
            header_keys=["id", "start", "end"],
        )
        launch = launch or Launch(self.directory)
        return Worker("1", "W-1-m_1.0", LocalLauncher(), launch, load, limits, self.listener, self.owner)

    def send(self, worker: Worker, body: bytes) -> None:
        job = self.owner.jobs["j"] = Call((), body, "text/plain")
        job.id = "j"
        worker.send([job], None)
        job.heard_at = now = asyncio.get_running_loop().time()  # as the dispatcher notes
        worker.begin(now)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    listener = WorkerListener(tmp_path)
    await listener.start()
    folder = tmp_path / "model"
    folder.mkdir()
    yield Bench(folder, listener)
    await listener.close()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a group of its own and has nothing to do with any worker."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


async def test_a_worker_cannot_have_another_process_killed(bench: Bench, bystander: subprocess.Popen[bytes]) -> None:
    (bench.directory / "sitecustomize.py").write_text(f"import os\nos.getpid = lambda: {bystander.pid}\n")
    worker = bench.worker()
    await worker.start()
    assert psutil.pid_exists(worker.pid)
    assert worker.pid != bystander.pid
    worker.kill("it is over")
    await worker.ended
    assert bystander.poll() is None


async def test_a_life(bench: Bench) -> None:
    worker = bench.worker()
    assert (worker.pid, worker.ready) == (-1, False)
    await worker.start()
    assert worker.ready
    assert psutil.pid_exists(worker.pid)
    bench.send(worker, b"hello")
    assert await bench.owner.bodies.get() == b"hello"
    await worker.stop(60)
    assert worker.state is WorkerState.STOPPED
    assert await worker.ended == "exited with code 0"
    assert not psutil.pid_exists(worker.pid)


async def test_parts_that_have_come_together_are_passed_on_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.worker()
    await worker.start()
    # The event loop stands still until the handler has sent its parts, and a turn of it never takes too long.
    stopped = SimpleNamespace(monotonic=lambda: 0.0, thread_time=lambda: 0.0)
    monkeypatch.setattr("torchserve_py.core.workers.connection.time", stopped)
    bench.send(worker, b"parts")
    deadline = time.monotonic() + DEADLINE
    while not (bench.directory / "sent").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [await bench.owner.bodies.get() for _ in range(4)] == [b"a", b"b", b"c", b"parts"]
    assert bench.owner.passed_on == [([b"a", b"b", b"c"], False), ([b"parts"], True)]
    await worker.stop(60)


async def test_a_worker_whose_end_cannot_be_awaited_has_ended_nevertheless(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(process: WorkerProcess) -> str:
        raise RuntimeError("a defect")

    monkeypatch.setattr(WorkerProcess, "wait", fail)
    worker = bench.worker()
    with pytest.raises(WorkerFailed, match="is given up because of an error in the server"):
        await asyncio.wait_for(worker.start(), 60)
    assert worker.state is WorkerState.DIED
    assert "A task of the server has failed: awaiting the end of worker W-1-m_1.0" in caplog.text
    assert "a defect" in caplog.text


async def test_a_worker_that_dies_as_soon_as_it_has_loaded_the_model_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.worker("import threading; threading.Timer(0.05, os._exit, [3]).start()")
    reach = Startup._reach

    async def reach_late(self: Startup, step: asyncio.Future[Any], limit: float, what: str) -> Any:
        reached = await reach(self, step, limit, what)
        if what == "load the model":  # as on a busy machine
            await asyncio.wait([self._ended])
        return reached

    monkeypatch.setattr(Startup, "_reach", reach_late)
    with pytest.raises(WorkerFailed, match="exited with code 3 as soon as it had loaded the model"):
        await worker.start()
    assert worker.state is WorkerState.DIED


@pytest.mark.parametrize(
    ("loading", "status", "told"),
    [
        ('raise RuntimeError("no weights")', 500, "RuntimeError: no weights"),
        ("raise MemoryError", 507, "memory"),
        ("os._exit(7)", 500, "exited with code 7 before it could load the model"),
    ],
)
async def test_a_model_that_does_not_load(bench: Bench, loading: str, status: int, told: str) -> None:
    worker = bench.worker(loading)
    with pytest.raises(WorkerFailed, match=told) as failed:
        await worker.start()
    assert failed.value.status == status
    assert worker.state is WorkerState.DIED
    assert not psutil.pid_exists(worker.pid)


async def test_loading_has_a_limit(bench: Bench) -> None:
    limits = WorkerLimits(connect=60.0, load=0.05, response=60.0, stop=60.0, heartbeat=60.0)
    worker = bench.worker("time.sleep(600)", limits)
    with pytest.raises(WorkerFailed, match=r"longer than 0\.05 s to load the model"):
        await worker.start()
    assert not psutil.pid_exists(worker.pid)


async def test_a_start_that_fails_does_not_wait_for_a_process_that_survives_sigkill(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that hangs inside the kernel does."""
    monkeypatch.setattr("torchserve_py.core.workers.worker._KILL_LIMIT", 0.05)
    limits = WorkerLimits(connect=60.0, load=0.05, response=60.0, stop=60.0, heartbeat=60.0)
    worker = bench.worker("time.sleep(600)", limits)
    with monkeypatch.context() as kernel:
        kernel.setattr(WorkerProcess, "kill", lambda process: None)
        with pytest.raises(WorkerFailed, match="to load the model"):
            await worker.start()
    assert "does not end, not even by SIGKILL" in caplog.text
    worker.kill("the kernel lets it go")
    await worker.ended


async def test_a_process_that_cannot_be_started(bench: Bench) -> None:
    worker = bench.worker(launch=Launch(bench.directory / "missing"))
    with pytest.raises(WorkerFailed, match="could not be started"):
        await worker.start()
    assert worker.pid == -1
    await worker.stop(60)


async def test_a_worker_can_be_stopped_while_it_is_being_launched(bench: Bench) -> None:
    worker = bench.worker("time.sleep(600)")
    starting = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    assert worker.pid == -1
    async with asyncio.timeout(60):
        await worker.stop(60)
    with pytest.raises(WorkerFailed):
        await starting
    assert not psutil.pid_exists(worker.pid)


async def test_a_worker_that_does_not_stop_in_time_is_killed(bench: Bench) -> None:
    worker = bench.worker()
    await worker.start()
    bench.send(worker, b"sleep")
    async with asyncio.timeout(60):
        while not (bench.directory / "sleeping").exists():
            await asyncio.sleep(0.001)
    await worker.stop(0.05)
    assert worker.state is WorkerState.STOPPED
    assert "killed by the server because it was told to stop" in await worker.ended


async def test_a_worker_without_a_word_for_its_jobs_is_killed(bench: Bench) -> None:
    worker = bench.worker(limits=WorkerLimits(connect=60.0, load=60.0, response=0.1, stop=60.0, heartbeat=60.0))
    await worker.start()
    bench.send(worker, b"sleep")
    assert "gave no response for 0.1 s" in await worker.ended
    assert worker.loss_cause is Cause.response_timeout
    assert worker.state is WorkerState.DIED


async def test_a_worker_that_sends_what_is_no_message_is_lost(bench: Bench) -> None:
    """A handler can find the socket of its own process; what it writes there must not hurt the server."""
    worker = bench.worker(
        "import gc, socket\n"
        "        self.sockets = [each for each in gc.get_objects() if isinstance(each, socket.socket)]\n"
        "        self.answer = lambda: [each.sendall(b'\\0\\0\\0\\1\\0') for each in self.sockets]"
    )
    await worker.start()
    bench.send(worker, b"garbage")
    await worker.disconnected.wait()
    assert not worker.ready
    await worker.ended
    assert worker.state is WorkerState.DIED


async def test_new_jobs_are_not_held_back_by_those_that_slow_readers_hold_back(bench: Bench) -> None:
    worker = bench.worker()
    await worker.start()
    worker.pause()
    bench.send(worker, b"hello")
    async with asyncio.timeout(60):
        assert await bench.owner.bodies.get() == b"hello"
    await worker.stop(60)
