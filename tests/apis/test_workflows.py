"""Workflows in a real server: archives that `torch-workflow-archiver` packs, models and functions as nodes."""

import json
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder

from torchserve_py.apis.workflows.torch_workflow_archiver import PackOptions, pack

SHOUT = """
def handle(data, context):
    return [bytes(row["body"]).decode().upper() for row in data or []]
"""

#: What the request's start node gets, and what its child gets.
FUNCTIONS = """
import json


def seen(data, context):
    if data is None:
        return None
    headers = context.get_all_request_header(0)
    return [json.dumps({"row": row, "colour": headers.get("x-colour")}) for row in data]


def types(data, context):
    if data is None:
        return None
    return [json.dumps({name: [type(value).__name__, json.loads(value)] for name, value in data[0].items()})]


def broken(data, context):
    if data is None:
        return None
    raise RuntimeError("out of glue")
"""


@pytest.fixture(scope="module")
def running() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


def add_workflow(running: RunningServer, name: str, spec: str, functions: str = "") -> Path:
    """Pack a workflow into the store."""
    folder = running.directory / name
    folder.mkdir()
    (folder / "spec.yaml").write_text(spec)
    (folder / "functions.py").write_text(functions)
    handler = str(folder / "functions.py") if functions else None
    return pack(PackOptions(name, str(folder / "spec.yaml"), handler, export_path=str(running.model_store)))


def register(running: RunningServer, url: str, **parameters: Any) -> requests.Response:
    query = {"url": url, **parameters}
    return requests.post(f"{running.management}/workflows", params=query, timeout=DEADLINE)


def serve(running: RunningServer, name: str, spec: str, functions: str = "") -> None:
    response = register(running, add_workflow(running, name, spec, functions).name)
    assert response.status_code == 200, response.text
    assert response.json() == {"status": f"Workflow {name} has been registered and scaled successfully."}


def predict(running: RunningServer, name: str, body: bytes | str = b"", **headers: str) -> requests.Response:
    headers = {"content-type": "text/plain", **headers}
    return requests.post(f"{running.inference}/wfpredict/{name}", data=body, headers=headers, timeout=DEADLINE)


def management(running: RunningServer, method: str, path: str) -> requests.Response:
    return requests.request(method, f"{running.management}{path}", timeout=DEADLINE)


def unregister(running: RunningServer, name: str) -> None:
    response = management(running, "DELETE", f"/workflows/{name}")
    assert (response.status_code, response.json()) == (200, {"status": f'Workflow "{name}" unregistered'})


def error_of(response: requests.Response) -> tuple[int, str, str]:
    body = response.json()
    assert body["code"] == response.status_code
    return response.status_code, body["type"], body["message"]


def test_nodes_one_after_the_other(running: RunningServer) -> None:
    model_folder(running.model_store, "shout", SHOUT)
    spec = "models: {loud: {url: shout, max-workers: 2}}\ndag: {seen: [loud], loud: [types]}\n"
    lower = FUNCTIONS.replace("json.loads(value)", "json.loads(value.decode().lower())")
    serve(running, "chain", spec, lower)
    response = predict(running, "chain", b'{"cat": 1}', **{"content-type": "application/json", "x-colour": "red"})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {"body": ["bytearray", {"row": {"body": {"cat": 1}}, "colour": "red"}]}

    described = management(running, "GET", "/workflows/chain").json()
    assert list(described[0].items()) == [
        ("workflowName", "chain"),
        ("workflowUrl", "chain.war"),
        ("minWorkers", 1),
        ("maxWorkers", 1),
        ("batchSize", 1),
        ("maxBatchDelay", 50),
        ("workflowDag", "{seen=[loud], loud=[types]}"),
    ]
    model = running.describe("chain__loud")[0]
    assert (model["modelUrl"], model["batchSize"], model["maxBatchDelay"], len(model["workers"])) == ("shout", 1, 50, 2)
    function = running.describe("chain__seen")[0]
    assert (function["modelVersion"], function["batchSize"], function["maxBatchDelay"]) == ("1.0", 1, 0)

    workers = running.workers()
    assert len(workers) == 4
    unregister(running, "chain")
    eventually(lambda: not running.workers(), "the workers are gone")
    assert not any(each.is_running() for each in workers)
    assert management(running, "GET", "/models").json()["models"] == []
    assert not list(running.temp.glob("ts-server-*/models/*"))
    assert error_of(predict(running, "chain")) == (404, "WorkflowNotFoundException", "Workflow not found: chain")


def test_parallel_nodes_run_at_the_same_time_and_their_answers_are_joined(running: RunningServer) -> None:
    """Each of the two nodes waits for a file that the other one makes: one after the other they would never end."""
    here = running.directory
    meet = f"""
{WAITING}

def meet(mine, other):
    open(f"{here}/{{mine}}", "w").close()
    wait_for(f"{here}/{{other}}")
    return [json.dumps({{"by": mine}})]


def left(data, context):
    return meet("left", "right") if data else None


def right(data, context):
    return meet("right", "left") if data else None
"""
    spec = "models: {timeout-ms: 60000}\ndag: {seen: [left, right], left: [types], right: [types]}\n"
    serve(running, "diamond", spec, FUNCTIONS + meet)
    response = predict(running, "diamond")
    assert response.status_code == 200, response.text
    assert response.json() == {"left": ["bytearray", {"by": "left"}], "right": ["bytearray", {"by": "right"}]}
    unregister(running, "diamond")


def test_several_leaves_are_one_object(running: RunningServer) -> None:
    text = "\n\ndef text(data, context):\n    return ['no object'] if data else None\n"
    serve(running, "leaves", "dag: {seen: [types, again], again: [text]}", FUNCTIONS + text + AGAIN)
    message = error_of(predict(running, "leaves"))[2]
    assert message.startswith("Error executing text: its answer is no JSON object")
    unregister(running, "leaves")
    serve(running, "two_leaves", "dag: {seen: [types, again]}", FUNCTIONS + AGAIN)
    answer = predict(running, "two_leaves", "x").json()
    seen = {"row": {"body": "x"}, "colour": None}
    assert answer == {"types": {"body": ["bytearray", seen]}, "again": seen}
    unregister(running, "two_leaves")


AGAIN = "\n\ndef again(data, context):\n    return [bytes(row['body']) for row in data or []]\n"


SERVED = """
from collections.abc import Iterator

from ts import serve


@serve
def words(text: str) -> list[str]:
    return text.split()


@serve
def spoken(words: list[str]) -> Iterator[str]:
    for word in words:
        yield f"{word}."
"""


def test_served_functions_are_nodes_and_the_only_leaf_streams(running: RunningServer) -> None:
    model_folder(
        running.model_store,
        "tally",
        'def handle(data, context):\n    return [bytes(row["body"]) for row in data or []]',
    )
    spec = "models: {tally: {url: tally}}\ndag: {words: [tally], tally: [spoken]}"
    serve(running, "speech", spec, SERVED)
    with requests.post(f"{running.inference}/wfpredict/speech", "one two", stream=True, timeout=DEADLINE) as answer:
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain")
        assert answer.headers["transfer-encoding"] == "chunked"
        assert answer.text == "one.two."
    document = requests.get(f"{running.inference}/openapi.json", timeout=DEADLINE).json()
    operation = document["paths"]["/wfpredict/speech"]["post"]
    assert operation["requestBody"]["content"]["text/plain"]["schema"] == {"type": "string"}
    assert operation["responses"]["200"]["content"] == {"text/plain": {"schema": {"type": "string"}}}
    unregister(running, "speech")


def test_a_failed_node_is_tried_again(running: RunningServer) -> None:
    tries = running.directory / "tries"
    lucky = f"""

def lucky(data, context):
    if data is None:
        return None
    with open({str(tries)!r}, "a+") as file:
        file.write("x")
        file.seek(0)
        if len(file.read()) % 3:
            raise RuntimeError("no luck")
    return ["done"]
"""
    serve(running, "lucky", "models: {retry-attempts: 3}\ndag: {lucky: []}", lucky)
    assert predict(running, "lucky").text == "done"
    assert tries.read_text() == "xxx"
    unregister(running, "lucky")


def test_a_failing_node_is_named(running: RunningServer) -> None:
    serve(running, "broken", "dag: {seen: [broken], broken: [types]}", FUNCTIONS)
    assert error_of(predict(running, "broken")) == (
        500,
        "InternalServerException",
        "Error executing broken: Prediction failed",
    )
    response = running.scale("broken__broken", 0)
    assert response.status_code == 200, response.text
    refused = predict(running, "broken")
    assert error_of(refused)[2].startswith('Error executing broken: Model "broken__broken" has no worker')
    assert (refused.headers["ts-error-cause"], refused.headers["retry-after"]) == ("no_worker", "1")
    assert running.unregister("broken__broken").status_code == 200
    gone = predict(running, "broken")
    assert error_of(gone)[2] == "Error executing broken: Model not found: broken__broken"
    assert gone.headers["ts-error-cause"] == "unregistered"
    unregister(running, "broken")


def test_a_node_that_takes_too_long_is_named_and_its_siblings_are_given_up(running: RunningServer) -> None:
    gate = Gate(running.directory, "never")
    slow = f"""
{WAITING}

def slow(data, context):
    if data:
        wait_for({str(gate.path)!r})
    return ["late" for _ in data or []]


def behind(data, context):
    if data:
        open({str(running.directory / "was_run")!r}, "w").close()
    return ["" for _ in data or []]
"""
    spec = "models: {timeout-ms: 200}\ndag: {slow: [behind]}\n"
    serve(running, "slow", spec, slow)
    assert error_of(predict(running, "slow")) == (
        500,
        "InternalServerException",
        "Error executing slow: no answer within 200 ms",
    )
    gate.open()
    unregister(running, "slow")
    assert not (running.directory / "was_run").exists()


def test_a_node_that_does_not_load_takes_the_others_with_it(running: RunningServer) -> None:
    model_folder(running.model_store, "bad", "import no_such_package\n")
    add_workflow(running, "half", "models: {bad: {url: bad}, gone: {url: no.mar}}\ndag: {seen: [bad, gone]}", FUNCTIONS)
    status, kind, message = error_of(register(running, "half.war"))
    assert (status, kind) == (500, "WorkflowException")
    assert message.startswith("Workflow half has failed to register. Failures: [")
    assert "bad: Failed to start workers for model half__bad version: 1.0 (" in message
    assert "no_such_package" in message
    assert "gone: Model not found at: no.mar" in message
    assert management(running, "GET", "/models").json()["models"] == []
    assert management(running, "GET", "/workflows").json()["workflows"] == []
    assert not running.workers()
    assert not list(running.temp.glob("ts-server-*/models/*"))


def test_errors_of_the_management_calls(running: RunningServer) -> None:
    add_workflow(running, "once", "dag: {seen: []}", FUNCTIONS)
    assert register(running, "once.war", workflow_name="renamed").status_code == 200
    assert error_of(register(running, "once.war", workflow_name="renamed")) == (
        409,
        "ConflictStatusException",
        "Workflow renamed is already registered.",
    )
    page = management(running, "GET", "/workflows?limit=1").json()
    assert page == {"nextPageToken": "1", "workflows": [{"workflowName": "renamed", "workflowUrl": "once.war"}]}
    unregister(running, "renamed")
    assert (running.model_store / "once.war").exists()

    response = requests.post(f"{running.management}/workflows", timeout=DEADLINE)
    assert error_of(response) == (400, "BadRequestException", "Parameter url is required.")
    response = requests.post(f"{running.management}/workflows", json={"url": "no.war"}, timeout=DEADLINE)
    assert error_of(response) == (
        404,
        "WorkflowNotFoundException",
        "Workflow not found in workflow store: no.war",
    )
    assert error_of(register(running, "https://example.invalid/w.war"))[:2] == (404, "ModelNotFoundException")
    for method in ("GET", "DELETE"):
        missing = management(running, method, "/workflows/none")
        assert error_of(missing) == (404, "WorkflowNotFoundException", "Workflow not found: none")
    assert error_of(management(running, "PUT", "/workflows/none"))[0] == 405
    assert error_of(management(running, "GET", "/workflows/none/1.0"))[0] == 404


def test_a_graph_that_is_none(running: RunningServer) -> None:
    folder = running.directory / "cycle"
    path = add_workflow(running, "cycle", "dag: {seen: [types]}", FUNCTIONS)
    (folder / "spec.yaml").write_text("dag: {seen: [types], types: [seen]}")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(folder / "spec.yaml", "spec.yaml")
        archive.write(folder / "functions.py", "functions.py")
        workflow = {"workflowName": "cycle", "specFile": "spec.yaml", "handler": "functions.py"}
        archive.writestr("WAR-INF/MANIFEST.json", json.dumps({"workflow": workflow}))
    assert error_of(register(running, "cycle.war")) == (
        400,
        "InvalidDAGException",
        "loop exception: seen and types are children of each other",
    )


def test_keys_stores_and_the_model_api() -> None:
    """Without the model API workflows can be registered, but not downloaded."""
    with RunningServer(flags=()) as running:
        keys = json.loads((running.directory / "key_file.json").read_text())
        add_workflow(running, "own", "dag: {seen: []}", FUNCTIONS)
        add_workflow(running, "far", "models: {m: {url: 'https://example.invalid/m.mar'}}\ndag: {m: []}")
        calls = f"{running.management}/workflows"
        assert error_of(requests.post(calls, params={"url": "own.war"}, timeout=DEADLINE))[1] == "InvalidKeyException"
        headers = {"authorization": f"Bearer {keys['management']['key']}"}
        for url in ("https://example.invalid/w.war", "far.war"):
            response = requests.post(calls, params={"url": url}, headers=headers, timeout=DEADLINE)
            assert error_of(response)[:2] == (405, "MethodNotAllowedException")
        response = requests.post(calls, params={"url": "own.war"}, headers=headers, timeout=DEADLINE)
        assert response.status_code == 200, response.text
        assert error_of(predict(running, "own"))[1] == "InvalidKeyException"
        answer = predict(running, "own", "x", authorization=f"Bearer {keys['inference']['key']}")
        assert answer.json()["row"] == {"body": "x"}


def test_a_server_that_stops_lets_a_request_finish_its_workflow() -> None:
    with RunningServer() as running, ThreadPoolExecutor() as pool:
        gate = Gate(running.directory)
        slow = f"{WAITING}\n\ndef slow(data, context):\n    if data:\n        wait_for({str(gate.path)!r})\n"
        slow += "    return [row['body'] for row in data or []]\n"
        spec = "models: {timeout-ms: 60000}\ndag: {slow: [again]}"
        serve(running, "w", spec, slow + AGAIN)
        answer = pool.submit(predict, running, "w", "finish me")
        gate.wait_until_reached()
        running.server.terminate()

        def draining() -> bool:
            return requests.get(f"{running.inference}/ready", timeout=DEADLINE).status_code == 503

        eventually(draining, "the server drains")
        # The request's second step is still to come, and is part of what was accepted; these requests are not.
        for path in ("predictions/w__again", "wfpredict/w"):
            refused = requests.post(f"{running.inference}/{path}", data="too late", timeout=DEADLINE)
            assert error_of(refused)[:2] == (503, "ServiceUnavailableException"), path
        gate.open()
        assert (answer.result().status_code, answer.result().text) == (200, "finish me")
        assert running.process is not None
        assert running.process.wait(DEADLINE) == 0
        assert not list(running.temp.glob("ts-server-*"))


def test_a_server_is_ready_when_its_start_up_workflows_are_registered() -> None:
    with RunningServer(properties={"load_workflows": "w.war"}) as running:

        def ready() -> dict[str, Any]:
            return requests.get(f"{running.inference}/ready", timeout=DEADLINE).json()

        told = ['The start-up workflow "w" could not be registered; the log says why.']
        eventually(lambda: ready().get("reasons") == told, "the archive was looked for")
        for path in ("wfpredict/w", "v1/realtime?model=w"):
            early = requests.get(f"{running.inference}/{path}", timeout=DEADLINE)
            cause = early.headers["ts-error-cause"], early.headers["retry-after"]
            assert (early.status_code, *cause) == (503, "not_loaded", "1"), path
        assert requests.get(f"{running.inference}/v2/health/ready", timeout=DEADLINE).status_code == 400
        serve(running, "w", "models: {}\ndag: {seen: [types]}", FUNCTIONS)
        assert ready() == {"status": "Ready"}
        assert requests.get(f"{running.inference}/v2/health/ready", timeout=DEADLINE).status_code == 200


def test_a_start_up_workflow_has_the_workers_that_its_entry_says() -> None:
    running = RunningServer(properties={"load_workflows": "w.war?workers.seen=2-3&workers.gone=1"})
    add_workflow(running, "w", "models: {}\ndag: {seen: [types]}", FUNCTIONS)
    with running:
        running.wait_ready()
        described = {node: running.describe(f"w__{node}")[0] for node in ("seen", "types")}
        counts = {node: (each["minWorkers"], each["maxWorkers"]) for node, each in described.items()}
        assert counts == {"seen": (2, 3), "types": (1, 1)}
        assert "Workflow w has no node gone any more" in running.log()


def test_models_of_a_workflow_are_listed_and_its_functions_are_not(running: RunningServer) -> None:
    model_folder(running.model_store, "shouting", SHOUT)
    spec = "models:\n  shout:\n    url: shouting\ndag:\n  seen: [shout]\n"
    add_workflow(running, "listed", spec, FUNCTIONS)
    answer = requests.post(f"{running.management}/workflows", params={"url": "listed.war"}, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text
    models = requests.get(f"{running.management}/models", timeout=DEADLINE).json()["models"]
    names = {each["modelName"] for each in models}
    assert "listed__shout" in names
    assert "listed__seen" not in names
    assert running.describe("listed__seen")[0]["modelName"] == "listed__seen"
    requests.delete(f"{running.management}/workflows/listed", timeout=DEADLINE)
