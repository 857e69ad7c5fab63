"""Workflows with a memory, in a real server: two nodes that store their sequences, and nodes that keep nothing."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
import requests
from tests.apis.test_workflows import add_workflow, error_of, predict, register
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

#: Answers with what it has got of the sequence so far.
HEARD = """
def handle(data, context):
    answers = []
    for i, row in enumerate(data or []):
        context.state[i] = [*(context.state.get(i) or []), bytes(row["body"]).decode()]
        answers.append(" ".join(context.state[i]))
    return answers
"""

#: Answers with the number of its steps, and with what it has got; does something else where a file is.
COUNTED = """


def is_there(name):
    return os.path.exists(os.path.join(FOLDER, name))


def handle(data, context):
    answers = []
    for i, row in enumerate(data or []):
        if is_there("fail"):
            raise RuntimeError("out of ink")
        if is_there("wait"):
            wait_for(os.path.join(FOLDER, "gate"))
        context.state[i] = (context.state.get(i) or 0) + 1
        answers.append(f"{context.state[i]}: {bytes(row['body']).decode()}")
    return answers
"""

CONFIG = """
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 10
handler:
  cache: {store: file}
"""

#: The salt differs each time: what a later node gets of a repeated request is another body.
FUNCTIONS = """
import os
import uuid


def clean(data, context):
    return [row["body"].strip() for row in data or []]


def salted(data, context):
    return [f"{bytes(row['body']).decode()} {uuid.uuid4().hex}" for row in data or []]


def printed(data, context):
    if data and os.path.exists(os.path.join(FOLDER, "tear")):
        raise RuntimeError("the paper is torn")
    return [bytes(row["body"]) for row in data or []]
"""

SPEC = """
models:
    heard: {url: heard}
    counted: {url: counted}
dag:
    clean: [heard]
    heard: [salted]
    salted: [counted]
    counted: [printed]
"""


@pytest.fixture
def running() -> Iterator[RunningServer]:
    server = RunningServer(properties={"load_workflows": "notes.war", "drain_timeout": 0, "job_queue_size": 3})
    where = f"FOLDER = {str(server.directory)!r}\n"
    model_folder(server.model_store, "heard", HEARD, CONFIG)
    model_folder(server.model_store, "counted", f"{where}{WAITING}{COUNTED}", CONFIG)
    add_workflow(server, "notes", SPEC, f"{where}{FUNCTIONS}")
    with server:
        server.wait_ready()
        yield server


def step(running: RunningServer, number: int, body: str, **headers: str) -> requests.Response:
    """Send a numbered step of one sequence."""
    claim = {"ts_request_step": str(number), "ts_request_sequence_token": "mine", **headers}
    return predict(running, "notes", body, ts_request_sequence_id="s", **claim)


def told(answer: requests.Response) -> tuple[str, str]:
    """Return the number of the steps of the second node, and what the first one has heard."""
    assert answer.status_code == 200, answer.text
    number, _, text = answer.text.partition(": ")
    return number, text.rpartition(" ")[0]


def switch(running: RunningServer, name: str) -> Any:
    return running.directory / name


def kill_worker_of(running: RunningServer, model: str) -> None:
    os.kill(int(running.describe(model)[0]["workers"][0]["pid"]), signal.SIGKILL)


def test_a_step_counts_once_at_each_node_whatever_fails(running: RunningServer) -> None:
    assert told(step(running, 1, " a ")) == ("1", "a")
    for name, node in (("fail", "counted"), ("tear", "printed")):
        switch(running, name).touch()
        failed = step(running, 2, "b")
        assert error_of(failed) == (500, "InternalServerException", f"Error executing {node}: Prediction failed")
        switch(running, name).unlink()
        # Once the second node had not counted the step, and once it had, whose answer is kept.
    second = step(running, 2, "b")
    assert told(second) == ("2", "a b")
    assert step(running, 2, "b").text == second.text
    assert (second.headers["ts_request_sequence_id"], "ts-sequence-hint" in second.headers) == ("s", False)
    for node in ("notes__heard", "notes__counted"):
        kill_worker_of(running, node)
    assert step(running, 2, "b").text == second.text
    assert told(step(running, 3, "c")) == ("3", "a b c")


def test_a_worker_and_the_server_die_in_the_middle_of_a_step(running: RunningServer) -> None:
    assert told(step(running, 1, "a")) == ("1", "a")
    gate = Gate(running.directory)
    switch(running, "wait").touch()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(step, running, 2, "b")
        gate.wait_until_reached()
        kill_worker_of(running, "notes__counted")
        switch(running, "wait").unlink()
        assert told(answer.result()) == ("2", "a b"), "another worker runs it"
        (running.directory / "gate.reached").unlink()
        switch(running, "wait").touch()
        answer = pool.submit(step, running, 3, "c")
        gate.wait_until_reached()
        running.server.kill()
        with pytest.raises(requests.ConnectionError):
            answer.result()
    assert running.process is not None
    running.process.wait(DEADLINE)
    switch(running, "wait").unlink()
    gate.open()
    running.launch()
    eventually(lambda: running.log().count("Model server started.") == 2, "it was restarted")
    running.wait_ready()
    assert told(step(running, 3, "c")) == ("3", "a b c")
    assert told(step(running, 4, "d")) == ("4", "a b c d")


def test_a_refused_step_is_told_as_a_model_tells_it(running: RunningServer) -> None:
    assert told(step(running, 1, "a")) == ("1", "a")
    refused = {
        "step_gap": step(running, 3, "c"),
        "step_differs": step(running, 1, "b"),
        "sequence_open": step(running, 1, "a", ts_request_sequence_token="other"),
        "sequence_unknown": step(running, 2, "a", ts_request_sequence_token="other"),
    }
    for cause, answer in refused.items():
        assert answer.headers["ts-error-cause"] == cause
        status = 410 if cause == "sequence_unknown" else 409
        assert answer.status_code == status, cause
        message = error_of(answer)[2]
        assert message.startswith("Error executing heard: ")
        assert 'equence "s" of model "notes__heard"' in message
    switch(running, "fail").touch()
    assert step(running, 2, "b").status_code == 500
    switch(running, "fail").unlink()
    ahead = step(running, 3, "c")  # the first node has counted the second step, the other has not
    assert (ahead.status_code, ahead.headers["ts-error-cause"]) == (409, "step_gap")
    assert error_of(ahead)[2].startswith("Error executing counted: ")
    assert [told(step(running, number, body)) for number, body in ((2, "b"), (3, "c"))] == [
        ("2", "a b"),
        ("3", "a b c"),
    ]
    assert running.scale("notes__counted", 0).status_code == 200
    without = step(running, 4, "d")
    told_by = without.headers["ts-error-cause"], without.headers["retry-after"]
    assert (without.status_code, *told_by) == (503, "no_worker", "1")
    bad = predict(running, "notes", "d", ts_request_sequence_id="s", ts_request_step="none")
    assert (bad.status_code, "'none' is not the number of a step" in error_of(bad)[2]) == (400, True)


def test_a_request_without_an_id_begins_a_sequence_at_all_nodes(running: RunningServer) -> None:
    first = predict(running, "notes", "a")
    name = first.headers["ts_request_sequence_id"]
    assert (told(first), name.startswith("ts-seq-")) == (("1", "a"), True)
    assert "the request named no sequence" in first.headers["ts-sequence-hint"]
    assert told(predict(running, "notes", "b", ts_request_sequence_id=name)) == ("2", "a b")


def test_the_end_reaches_all_nodes(running: RunningServer) -> None:
    def send(body: str, **headers: str) -> requests.Response:
        return predict(running, "notes", body, ts_request_sequence_id="t", **headers)

    assert [told(send(body)) for body in "ab"] == [("1", "a"), ("2", "a b")]
    assert told(send("c", ts_request_sequence_end="true")) == ("3", "a b c")
    assert told(send("d")) == ("1", "d"), "another sequence, everywhere"
    switch(running, "fail").touch()
    assert send("e", ts_request_sequence_end="true").status_code == 500
    switch(running, "fail").unlink()
    assert told(send("f")) == ("1", "f"), "the node that failed has ended the old one, too"
    assert told(step(running, 1, "a")) == ("1", "a")
    switch(running, "fail").touch()
    assert step(running, 2, "b", ts_request_sequence_end="true").status_code == 500
    switch(running, "fail").unlink()
    assert told(step(running, 2, "b", ts_request_sequence_end="true")) == ("2", "a b"), "its client sends it again"
    over = step(running, 3, "c")
    assert (over.status_code, over.headers["ts-error-cause"]) == (410, "sequence_ended")


def test_steps_of_a_sequence_go_through_one_after_another(running: RunningServer) -> None:
    gate = Gate(running.directory)
    switch(running, "wait").touch()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(step, running, 1, "a")
        gate.wait_until_reached()
        second = pool.submit(step, running, 2, "b")
        impatient = step(running, 3, "c", ts_request_timeout="50")
        assert (impatient.status_code, impatient.headers["ts-error-cause"]) == (408, "client_timeout")
        gate.open()
        assert (told(first.result()), told(second.result())) == (("1", "a"), ("2", "a b"))


def test_as_many_steps_of_a_sequence_wait_as_requests_for_the_start_node(running: RunningServer) -> None:
    gate = Gate(running.directory)
    switch(running, "wait").touch()

    def send(request_id: str) -> requests.Response:
        return predict(running, "notes", "x", ts_request_sequence_id="s", ts_request_id=request_id)

    with ThreadPoolExecutor() as pool:
        first = pool.submit(send, "first")
        gate.wait_until_reached()
        others = [pool.submit(send, f"other {number}") for number in range(4)]
        refused = next(as_completed(others))  # the three that wait have no answer before the gate opens
        gate.open()
        answer = refused.result()
        assert (answer.status_code, answer.headers["ts-error-cause"]) == (503, "queue_full")
        assert "3 steps of the sequence wait already (jobQueueSize)" in answer.text
        answered = [told(each.result())[0] for each in (first, *others) if each is not refused]
        assert sorted(answered) == ["1", "2", "3", "4"]


def test_openapi_names_the_header_and_a_workflow_without_memory_has_none(running: RunningServer) -> None:
    add_workflow(running, "plain", "dag: {clean: []}", FUNCTIONS.replace("printed", "unused"))
    assert register(running, "plain.war").status_code == 200
    paths = requests.get(f"{running.inference}/openapi.json", timeout=DEADLINE).json()["paths"]
    (header,) = paths["/wfpredict/notes"]["post"]["parameters"]
    assert (header["name"], header["in"]) == ("ts_request_sequence_id", "header")
    assert "parameters" not in paths["/wfpredict/plain"]["post"]
    answer = predict(running, "plain", " x ", ts_request_sequence_id="s")
    assert (answer.text, "ts_request_sequence_id" in answer.headers) == ("x", False)
