"""A journal of real requests, and its replay on another version: what differs is found, and nothing else."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import requests
from tests.e2e.journals import model, records, register, replay, wait_for_records
from tests.e2e.running_server import DEADLINE, RunningServer, eventually
from websockets.sync.client import connect
from websockets.typing import Subprotocol

#: Adds up the numbers of a sequence, and says on which step it is. The other version answers one number differently.
HANDLER = """
import json

class Adder:
    def initialize(self, context):
        self.wrong = context.manifest["model"].get("modelVersion") == "2.0"

    def handle(self, data, context):
        return [self.answer(row, context, index) for index, row in enumerate(data)]

    def answer(self, row, context, index):
        body = row.get("data") or row.get("body")
        number = body if isinstance(body, (int, float)) else json.loads(body)
        total, steps = context.state.get(index, (0, 0))
        total, steps = total + number, steps + 1
        context.state[index] = total, steps
        named = context.get_request_header(index, "ts_request_sequence_id")
        return {"sequence": named, "sum": total + (self.wrong and number == 424242), "steps": steps}
"""
CONFIG = """minWorkers: 1
batchSize: 32
maxBatchDelay: 1
sequenceMaxIdleMSec: 3600000
maxNumSequence: 20000
sequenceBatching: true
"""
#: Answers with what it got, which comes in three parts if the request says so. The other version counts one more.
ECHO = """
import json
import time
from ts.handler_utils.utils import send_intermediate_predict_response

def handle(data, context):
    answers = []
    for index, row in enumerate(data or ()):
        body = row.get("data") or row.get("body") or row
        if isinstance(body, (bytes, bytearray)):
            body = bytes(body).decode()
        answers.append({"got": body, "took": time.time()})
        if "tensor" in str(body):
            answers[-1] = {"got": body}
        if context.get_request_header(index, "x-stream"):
            for part in "ab":
                send_intermediate_predict_response([part], context.request_ids, "ok", 200, context)
            answers[-1] = "c"
    return answers
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def add(server: RunningServer, sequence: str, numbers: Sequence[int]) -> None:
    """Send the steps of a sequence."""
    with requests.Session() as session:
        for step, number in enumerate(numbers):
            headers = {"ts_request_sequence_id": sequence}
            if not step:
                headers["ts_request_sequence_start"] = "true"
            url = f"{server.inference}/predictions/adder"
            answer = session.post(url, json=number, headers=headers, timeout=DEADLINE)
            assert answer.status_code == 200, answer.text


def test_a_replay_of_2000_requests_finds_a_planted_difference_and_no_other(tmp_path: Path, folder: Path) -> None:
    first = model(tmp_path, "adder", "1.0", HANDLER, f"{CONFIG}journal: on\n")
    second = model(tmp_path, "adder", "2.0", HANDLER, CONFIG)
    with RunningServer({"adder": first}, {"journal_folder": folder, "job_queue_size": 1000}) as server:
        server.wait_ready()

        def run(number: int) -> None:
            numbers = [number * 100 + step for step in range(100)]
            add(server, f"user-{number}", numbers if number != 7 else [*numbers[:98], 424242, 1])

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(run, range(20)))
        wait_for_records(folder, 2_000)
        register(server, second)
        status, report = replay(server, str(folder), "--model", "adder=2.0", "--at-once", "64")
    assert (status, report["replayed"], report["equal"], report["differing"]) == (1, 2_000, 1_999, 1)
    assert report["differences"][0]["sequence"] == "user-7"
    assert report["differences"][0]["what"][0].startswith("sum: ")


def test_sequences_over_every_protocol_are_replayed(tmp_path: Path, folder: Path) -> None:
    first = model(tmp_path, "adder", "1.0", HANDLER, f"{CONFIG}journal: on\n")
    with RunningServer({"adder": first}, {"journal_folder": folder}) as server:
        server.wait_ready()
        add(server, "one", [1, 2, 3])
        add(server, "two", [10, 20])
        url = f"{server.inference.replace('http', 'ws')}/sequences/adder/1.0?content_type=application/json"
        with connect(url, subprotocols=[Subprotocol("sequences.json.v1")]) as socket:
            socket.recv(DEADLINE)
            for number in (5, 6):
                socket.send(json.dumps({"body": str(number)}))
                assert json.loads(socket.recv(DEADLINE))["status"] == 200
        found = wait_for_records(folder, 7)
        assert {each["via"] for each in found} == {"http", "websocket"}
        status, report = replay(server, str(folder), "--model", "adder=1.0")
        assert (status, report["equal"], report["not_replayed"]) == (0, 7, {})
        # What a replay does is in the journal as well, and not replayed again.
        wait_for_records(folder, 14)
        status, report = replay(server, str(folder), "--model", "adder", "--speed", "1000")
        assert (status, report["equal"], report["not_replayed"]) == (0, 7, {})
        assert report["seconds"].keys() == {"recorded", "replayed", "late"}


def send_of_all_kinds(server: RunningServer) -> None:
    """Send one request of each kind to the model echo."""
    for text, kind in (("é", "text/plain"), ("a", "application/octet-stream"), ('{"x": [1, 2.5]}', "application/json")):
        headers = {"content-type": kind, "authorization": "secret"}
        assert server.predict("echo", text.encode(), headers=headers).status_code == 200
    assert server.predict("echo", "s", headers={"x-stream": "yes"}).text == "abc"
    open_inference = {"inputs": [{"name": "data", "shape": [1], "datatype": "BYTES", "data": ["tensor"]}]}
    for path in ("/predictions/echo/1.0", "/echo/predict?a=1", "/v1/models/echo:predict", "/echo"):
        assert requests.post(server.inference + path, data="x", timeout=DEADLINE).status_code == 200, path
    answer = requests.post(f"{server.inference}/v2/models/echo/infer", json=open_inference, timeout=DEADLINE)
    assert answer.status_code == 200, answer.text


def test_a_request_of_each_kind_is_sent_to_the_other_version(tmp_path: Path, folder: Path) -> None:
    config = "minWorkers: 1\njournal: {headers: [x-stream]}\n"
    first, second = (model(tmp_path, "echo", version, ECHO, config) for version in ("1.0", "2.0"))
    with RunningServer({"echo": first}, {"journal_folder": folder, "journal_keep_hours": 1}) as server:
        server.wait_ready()
        send_of_all_kinds(server)
        found = wait_for_records(folder, 9)
        assert "secret" not in json.dumps(found)
        stream = next(each for each in found if each["answer"] == "abc")
        assert stream["part_bytes"] == [1, 1, 1]
        assert stream["part_seconds"] == sorted(stream["part_seconds"])
        assert pd.read_json(next(folder.rglob("*.jsonl")), lines=True)["status"].tolist() == [200] * 9
        register(server, second)
        given = (str(folder), "--model", "echo=2.0")
        status, report = replay(server, *given)
        assert (status, report["differing"], report["not_replayed"]) == (1, 7, {})
        status, report = replay(server, *given, "--ignore", "took", "--tolerance", "0.5")
        assert (status, report["equal"], report["not_replayed"]) == (0, 9, {}), report["differences"]
        wait_for_records(folder, 9 * 3)
        assert {each["version"] for each in records(folder)} == {"1.0", "2.0"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_bytes(base64.b64encode(bytes(range(32))))
    return file


def test_records_are_redacted_and_encrypted(tmp_path: Path, folder: Path, key_file: Path) -> None:
    (tmp_path / "redaction.py").write_text(
        "def redact(record):\n"
        "    record['body'] = record['body'].replace('Anna', 'X')\n"
        "    record['answer'] = record['answer'].replace('Anna', 'X')\n"
        "    return None if 'nothing' in record['body'] else record\n"
    )
    place = model(tmp_path, "echo", "1.0", ECHO, "minWorkers: 1\njournal: on\n")
    properties = {"journal_folder": folder, "journal_key_file": key_file, "journal_redact": "redaction:redact"}
    server = RunningServer({"echo": place}, properties)
    server.environment["PYTHONPATH"] += os.pathsep + str(tmp_path)
    with server:
        server.wait_ready()
        for text in ("Anna", "nothing of this", "Berta"):
            assert server.predict("echo", text).status_code == 200
        eventually(lambda: server.metric("ts_journal_records_total") == 2, "two records are counted")
        assert server.metric("ts_journal_dropped_total") == 1
        written = b"".join(file.read_bytes() for file in folder.rglob("*.jsonl"))
        assert b"Berta" not in written
        status, report = replay(server, str(folder), "--key-file", str(key_file), "--ignore", "took")
        assert (status, report["equal"]) == (0, 2)
        key_file.write_bytes(base64.b64encode(bytes(32)))
        refused = [sys.executable, "-m", "torchserve_py.cli", "replay", str(folder), "--key-file", str(key_file)]
        done = subprocess.run(refused, env=server.environment, capture_output=True, text=True, check=False)
        assert (done.returncode, "sealed with another key" in done.stderr) == (2, True)


def test_a_killed_server_leaves_whole_records(tmp_path: Path, folder: Path) -> None:
    place = model(tmp_path, "echo", "1.0", ECHO, "minWorkers: 1\njournal: on\n")
    with RunningServer({"echo": place}, {"journal_folder": folder}) as server:
        server.wait_ready()
        for number in range(50):
            server.predict("echo", str(number))
        wait_for_records(folder, 50)
        server.server.send_signal(signal.SIGKILL)
        assert server.process is not None
        server.process.wait(DEADLINE)
        assert len(records(folder)) == 50
        with next(folder.rglob("*.jsonl")).open("ab") as file:  # as if it had been killed within a write
            file.write(b'{"time": "2026')
        server.output.write_text("")
        server.start()
        server.wait_ready()
        server.predict("echo", "again")
        eventually(lambda: server.metric("ts_journal_records_total") == 1, "its record is counted")
        assert len([*folder.rglob("*.jsonl")]) == 2
        status, report = replay(server, str(folder), "--ignore", "took")
        assert (status, report["equal"], report["incomplete_lines"]) == (0, 51, 1)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("journal: {sample: 2}", "journal.sample is 2 (int), it must be a number above 0, at most 1"),
        ("journal: {headers: [Authorization]}", "a secret that is never written"),
        ("journal: maybe", "on, off, or a map"),
    ],
)
def test_a_model_with_an_impossible_journal_is_refused(config: str, said: str, tmp_path: Path, folder: Path) -> None:
    place = model(tmp_path, "echo", "1.0", ECHO, f"{config}\n")
    with RunningServer({}, {"journal_folder": folder}) as server:
        answer = requests.post(f"{server.management}/models", params={"url": str(place)}, timeout=DEADLINE)
        assert answer.status_code == 400, answer.text
        assert said in answer.text
