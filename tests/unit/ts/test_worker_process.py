"""The real process: how it greets, loads, works, logs and ends."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ts.frontend_stub import BACKEND, DEADLINE_SECONDS, OK, FrontendStub, Peer, load_message, row

ECHO = """
    import logging
    import os
    import sys

    def handle(data, context):
        if data is None:
            print("loading in", os.getcwd())
            logging.getLogger("model").info("logged")
            print("to stderr", file=sys.stderr)
            return None
        return [row["body"] for row in data]
"""


@pytest.fixture
def start(frontend: FrontendStub, tmp_path: Path, model: Callable[..., str]) -> Callable[..., Any]:
    """Start a worker for a handler's source; return it with its two connections, before it loads."""

    def start_worker(source: str) -> tuple[subprocess.Popen[str], Peer, Peer]:
        model(source, "handler.py")
        process = frontend.start_worker(tmp_path)
        peers = {}
        for _ in range(2):
            peer, hello = frontend.accept()
            assert hello["token"] == "secret"
            peers[hello["channel"]] = peer
        return process, peers["jobs"], peers["heartbeat"]

    return start_worker


def load(jobs: Peer, model_dir: Path, **changes: Any) -> dict[str, Any]:
    jobs.send("load", load_message(model_dir, **changes))
    kind, reply = jobs.receive()
    assert kind == "loaded"
    return reply  # type: ignore[no-any-return]


def test_it_loads_answers_and_stops(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, heartbeat = start(ECHO)

    assert load(jobs, tmp_path) == OK
    jobs.send("infer", [row("a", b"1"), row("b", b"x" * 1_000_000)])
    kind, rows, seconds = jobs.receive()
    assert kind == "results"
    assert [(answer[0], answer[1], answer[5]) for answer in rows] == [
        ("a", False, b"1"),
        ("b", False, b"x" * 1_000_000),
    ]
    assert seconds > 0
    heartbeat.send("ping", 7)
    assert heartbeat.receive() == ["pong", 7]
    jobs.send("stop")

    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert output.splitlines() == [f"loading in {tmp_path}", "logged", "to stderr"]


IMPORTED = """
    import sys

    def handle(data, context):
        libraries = (
            "ts.torch_handler", "ts.handler_utils", "ts.utils", "ts.model_service", "ts.sequence", "ts.sequences",
            "ts.apis", "ts.contracts", "ts.core", "ts.fleet", "ts.ops", "ts.versions",
            "ts.jobs.device_copies", "ts.metrics", "ts.protocol.datatypes",
            "ts.protocol.otf_message_handler", "ts.launcher", "ts.llm_launcher",
        )
        return data and ["\\n".join(name for name in sys.modules if f"{name}.".startswith(libraries)) for _ in data]
    """


CONTINUOUS = b"ts.contracts\nts.contracts.continuous_batching\nts.contracts.continuous_batching.continuous"


@pytest.mark.parametrize(
    ("changes", "imported"),
    [({}, b""), ({"continuous": True}, CONTINUOUS), ({"sequences": True, "steps": ""}, b"")],
)
def test_a_plain_handler_is_served_without_the_library_of_handlers_and_other_wings(
    start: Callable[..., Any], tmp_path: Path, changes: dict[str, Any], imported: bytes
) -> None:
    _, jobs, _ = start(IMPORTED)

    assert load(jobs, tmp_path, adapters=[], **changes) == OK
    jobs.send("infer", [row("a", b"1")])
    _, (answer,), _ = jobs.receive()
    assert (answer[2], answer[5]) == (200, imported)


@pytest.mark.parametrize("continuous", [False, True])
def test_a_batch_that_came_before_the_stop_is_answered(
    start: Callable[..., Any], tmp_path: Path, continuous: bool
) -> None:
    process, jobs, _ = start(ECHO)
    load(jobs, tmp_path, continuous=continuous)

    jobs.send_together(["infer", [row("a", b"1")]], ["infer", [row("b", b"2")]], ["stop"])

    answers = [answer for _ in range(1 if continuous else 2) for answer in jobs.receive()[1]]
    assert [(answer[0], answer[5]) for answer in answers] == [("a", b"1"), ("b", b"2")]
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


def test_its_output_arrives_line_by_line_while_it_runs(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start("def handle(data, context):\n        print('printed')")
    load(jobs, tmp_path)

    readable, _, _ = select.select([process.stdout], [], [], DEADLINE_SECONDS)
    assert readable, "the line is still in the worker's buffer"
    assert process.stdout.readline() == "printed\n"


def test_the_token_is_gone_from_the_environment_that_handlers_see(start: Callable[..., Any], tmp_path: Path) -> None:
    _, jobs, _ = start(
        "import os\ndef handle(data, context):\n        return data and [os.environ.get('TS_WORKER_TOKEN')]"
    )
    load(jobs, tmp_path)
    jobs.send("infer", [row("a")])

    assert jobs.receive()[1][0][5] == b"null"


def test_a_model_that_parses_arguments_finds_none(start: Callable[..., Any], tmp_path: Path) -> None:
    _, jobs, _ = start(
        "import argparse\nOPTIONS = argparse.ArgumentParser().parse_args()\ndef handle(data, context):\n    return data"
    )
    assert load(jobs, tmp_path) == OK


def test_a_handler_that_exits_leaves_a_line(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start("import sys\ndef handle(data, context):\n    if data:\n        sys.exit(0)")
    load(jobs, tmp_path)
    jobs.send("infer", [row("a")])

    output, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert "The handler called sys.exit(0), which ends this worker." in output


@pytest.mark.parametrize(("given", "expected"), [(None, "3 3"), ("7", "7 None")])
def test_libraries_use_the_workers_share_of_the_processors(
    start: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    _, jobs, _ = start(
        "import os\n"
        "FOUND = os.environ.get('OMP_NUM_THREADS'), os.environ.get('OPENBLAS_NUM_THREADS')\n"
        "def handle(data, context):\n    return data and ['%s %s' % FOUND]"
    )
    load(jobs, tmp_path, processors=3)
    jobs.send("infer", [row("a")])

    assert jobs.receive()[1][0][5] == expected.encode()


@pytest.mark.parametrize(
    ("statement", "status", "message"),
    [
        ("raise ValueError('bad weights')", 500, "ValueError: bad weights"),
        ("raise SystemExit(3)", 500, "The model's code called sys.exit(3) while it was loaded"),
        ("raise BaseException('a panic of Rust code')", 500, "BaseException: a panic of Rust code"),
        ("raise MemoryError()", 507, "System out of memory"),
        ("raise RuntimeError('CUDA out of memory')", 507, "System out of memory"),
        ("import library_that_nobody_has", 500, "ModuleNotFoundError: No module named 'library_that_nobody_has'"),
        ("class A: ...", 500, "Expect handle method"),
        ("def handle(", 500, "SyntaxError: '(' was never closed"),
    ],
)
def test_a_model_that_cannot_be_loaded_is_reported_with_its_traceback(
    start: Callable[..., Any], tmp_path: Path, statement: str, status: int, message: str
) -> None:
    process, jobs, _ = start(statement)

    reply = load(jobs, tmp_path)

    assert (reply["ok"], reply["status"]) == (False, status)
    assert reply["message"].startswith(message)
    places = re.findall(r'File "(.+)", line', reply["traceback"])
    of_the_model = 0 if message == "Expect handle method" else 1
    assert [Path(place).parent for place in places] == [tmp_path] * of_the_model, "only the model's code is shown"
    assert process.wait(DEADLINE_SECONDS) == 1


def test_it_ends_when_the_frontend_closes_the_connection(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start(ECHO)
    load(jobs, tmp_path)
    jobs.close()

    assert process.wait(DEADLINE_SECONDS) == 0


def test_a_stream_ends_with_the_process_when_the_frontend_goes(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start(
        """
        from ts.handler_utils.utils import send_intermediate_predict_response

        def handle(data, context):
            while data:
                try:
                    send_intermediate_predict_response(["part"], context.request_ids, "success", 200, context)
                except Exception:
                    pass
        """
    )
    load(jobs, tmp_path)
    jobs.send("infer", [row("a")])
    jobs.receive()
    jobs.close()

    assert process.wait(DEADLINE_SECONDS) == 0


def test_continuous_batches_go_on_without_the_frontend_and_are_cancelled(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    _, jobs, _ = start(
        """
        class Handler:
            def initialize(self, context):
                pass

            def handle(self, data, context):
                context.stopping_criteria = [lambda result: False] * len(data)
                return ["part"] * len(data)
        """
    )
    load(jobs, tmp_path, continuous=True)
    jobs.send("infer", [row("a")])
    for _ in range(3):
        assert jobs.receive()[1][0][:2] == ["a", True]
    jobs.send("cancel", ["a"])
    while (last := jobs.receive()[1][0])[1]:
        pass

    assert (last[0], last[2], last[6]) == ("a", 499, "cancelled")


def test_it_answers_pings_while_the_handler_works(start: Callable[..., Any], tmp_path: Path) -> None:
    _, jobs, heartbeat = start(
        """
        import os

        def handle(data, context):
            if data:
                with open(os.path.join(context.system_properties["model_dir"], "gate")) as gate:
                    return [gate.read()]
        """
    )
    os.mkfifo(tmp_path / "gate")
    load(jobs, tmp_path)
    jobs.send("infer", [row("a")])
    heartbeat.send("ping", 1)

    assert heartbeat.receive() == ["pong", 1]
    (tmp_path / "gate").write_text("open")
    assert jobs.receive()[1][0][5] == b"open"


def test_ctrl_c_is_left_to_the_frontend_and_sigterm_ends_it(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start(ECHO)
    load(jobs, tmp_path)
    process.send_signal(signal.SIGINT)
    jobs.send("infer", [row("a", b"still here")])
    assert jobs.receive()[1][0][5] == b"still here"
    process.send_signal(signal.SIGTERM)

    assert process.wait(DEADLINE_SECONDS) == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_it_dies_with_its_parent_even_in_the_middle_of_an_inference(
    frontend: FrontendStub, tmp_path: Path, model: Callable[..., str]
) -> None:
    model("import time\ndef handle(data, context):\n        while data:\n            time.sleep(60)", "handler.py")
    starter = (
        "import subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-P', '-m', 'ts.process.worker', '--socket', {frontend.path!r}]);"
        "time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": str(BACKEND), "TS_WORKER_TOKEN": "secret"}
    parent = subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path, env=environment)
    try:
        jobs, _ = frontend.accept()
        heartbeat, _ = frontend.accept()
        load(jobs, tmp_path)
        jobs.send("infer", [row("a")])
    finally:
        parent.kill()
        parent.wait()

    with pytest.raises(EOFError):
        heartbeat.receive()


def test_wrong_arguments_are_told() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "ts.process.worker"],
        env={"PYTHONPATH": str(BACKEND)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )

    assert result.returncode == 2
    assert "usage: python -P -m ts.process.worker --socket ADDRESS" in result.stderr


def test_a_worker_whose_steps_are_long_goes_on_with_threads(start: Callable[..., Any], tmp_path: Path) -> None:
    process, jobs, _ = start(
        """
        import threading
        import time

        def handle(data, context):
            if data is None:
                return None
            time.sleep(0.02)
            context.set_response_header(0, "threads", ",".join(each.name for each in threading.enumerate()))
            return [str(len(row.get("body"))) for row in data]
        """
    )
    load(jobs, tmp_path)
    body, threads, is_over = bytes(4_000_000), [], threading.Event()

    def send() -> None:
        for number in range(200):  # to move so many bytes takes long enough on any machine, but some steps may be slow
            if not is_over.is_set():
                jobs.send("infer", [row(f"job{number}", body[number:])])
        jobs.send("stop")

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(200):
        ((job_id, _, status, _, headers, answer, *_),) = jobs.receive()[1]
        assert (job_id, status, int(answer)) == (f"job{number}", 200, 4_000_000 - number)
        threads.append(dict(headers)["threads"])
        if "_receive" in threads[-1]:
            is_over.set()
            break
    assert "_receive" not in threads[0]
    assert "_receive" in threads[-1]
    sender.join(DEADLINE_SECONDS)
    process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("file", "loaded"), [("good", True), ("bad", False)])
def test_it_warms_up_before_it_says_that_it_has_loaded(
    start: Callable[..., Any], tmp_path: Path, asynchronous: bool, file: str, loaded: bool
) -> None:
    (tmp_path / file).write_text(file)
    source = f"""
        async def initialize(context):
            pass

        {"async " if asynchronous else ""}def handle(data, context):
            if data is not None:
                print("called with", bytes(data[0]["body"]))
                return [{{b"good": "fine"}}[bytes(row["body"])] for row in data]
    """
    process, jobs, _ = start(source)
    request = {"file": file, "content_type": None, "inputs": [], "rows": 1, "calls": 1}
    preparations = {"ts.contracts.warm_up.warm_up": [request]}
    reply = load(jobs, tmp_path, preparations=preparations, asynchronous=asynchronous, batch_size=1)
    assert reply["ok"] is loaded
    if loaded:
        jobs.send("stop")
    else:
        assert reply["message"] == "Warm-up request 0 (bad, 1 in a batch) failed: KeyError: b'bad'"
    assert f"called with b'{file}'" in process.communicate(timeout=DEADLINE_SECONDS)[0]
