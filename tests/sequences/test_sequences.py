"""Sequences over HTTP, with real workers: their state, their order, their limits, and how they end."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest
import requests
from tests.e2e.gate import Gate
from tests.e2e.recorder import recorder, wait_until_ended
from tests.e2e.running_server import HANDLERS, RunningServer, eventually, model_folder

START = {"ts_request_sequence_start": "true"}
END = {"ts_request_sequence_end": "true"}
#: How long a sequence of the model ``lifetime`` may live (seconds).
LIFETIME = 0.4

#: The ready-made handler, whose streams here go on until they are cancelled.
ENDLESS = """
import time

import stateful_handler

stateful_handler.FURTHER_RESPONSES = 10**9


class EndlessHandler(stateful_handler.StatefulHandler):
    def handle(self, data, context):
        time.sleep(0.002)
        return super().handle(data, context)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The model folders by the name of their model."""
    directory = tmp_path_factory.mktemp("models")
    continuous = directory / "continuous"
    shutil.copytree(HANDLERS / "stateful", continuous)
    shutil.move(continuous / "model-config-continuous.yaml", continuous / "model-config.yaml")
    endless = model_folder(
        directory,
        "endless",
        ENDLESS,
        "continuousBatching: true\nsequenceBatching: true\nsequenceMaxIdleMSec: 600000\nbatchSize: 2\n"
        "maxNumSequence: 10\nmaxSequenceJobQueueSize: 4\n",
    )
    shutil.copy(HANDLERS / "stateful" / "stateful_handler.py", endless)
    configs = {
        "idle": "sequenceMaxIdleMSec: 300\nmaxNumSequence: 10\n",
        "lifetime": f"sequenceTimeoutMSec: {LIFETIME * 1000:g}\nmaxNumSequence: 10\n",
        "lenient": "sequenceMaxIdleMSec: 300\nmaxNumSequence: 10\nonExpiredSequence: restart\n",
        "small": "maxNumSequence: 2\nmaxSequenceJobQueueSize: 1\n",
        "ordered": "maxNumSequence: 10\nmaxSequenceJobQueueSize: 100\nbatchSize: 4\nmaxBatchDelay: 0\n",
    }
    folders = {name: recorder(directory, name, config) for name, config in configs.items()}
    stateful = HANDLERS / "stateful"
    return {**folders, "continuous": continuous, "endless": endless, "stateful": stateful, "thousand": stateful}


@pytest.fixture(scope="module")
def server(folders: dict[str, Path]) -> Iterator[RunningServer]:
    with RunningServer(folders, {"drain_timeout": 0}) as server:
        server.wait_ready()
        yield server


@pytest.fixture
def send(server: RunningServer) -> Iterator[Callable[..., Future[requests.Response]]]:
    """Post in the background; arguments as those of `RunningServer.predict`."""
    with ThreadPoolExecutor(max_workers=64) as pool:
        yield lambda *args, **more: pool.submit(server.predict, *args, **more)


def assert_refused(response: requests.Response, status: int, cause: str) -> None:
    assert (response.status_code, response.headers.get("ts-error-cause")) == (status, cause), response.text
    assert response.json()["code"] == status


# State


def test_totals_run_per_sequence(server: RunningServer) -> None:
    answers = [
        server.predict("stateful", number, sequence=sequence).text
        for number, sequence in [("5", "one"), ("7", "two"), ("12", "one"), ("1", "two"), ("-3", "one")]
    ]
    assert answers == ["5", "7", "17", "8", "14"]


def test_an_id_is_made_up_for_a_request_without_one_and_returned(server: RunningServer) -> None:
    first = server.predict("stateful", "5")
    sequence = first.headers["ts_request_sequence_id"]
    assert sequence.startswith("ts-seq-")
    assert server.predict("stateful", "6", sequence=sequence).text == "11"
    assert server.predict("stateful", "5").headers["ts_request_sequence_id"] != sequence


def test_the_id_is_returned_even_if_the_handler_does_not(server: RunningServer) -> None:
    assert server.predict("ordered", "x", sequence="mine").headers["ts_request_sequence_id"] == "mine"


@pytest.mark.parametrize("name", ["Ts_Request_Sequence_Id", "TS_REQUEST_SEQUENCE_ID"])
def test_header_names_are_matched_without_regard_to_case(server: RunningServer, name: str) -> None:
    server.predict("stateful", "5", sequence=name)
    response = server.predict("stateful", "6", headers={name: name})
    assert (response.status_code, response.text) == (200, "11")


def test_a_start_marker_begins_anew(server: RunningServer) -> None:
    server.predict("stateful", "5", sequence="again")
    assert server.predict("stateful", "6", sequence="again", headers=START).text == "6"


# Ends


def test_the_handler_ends_a_sequence_with_a_response_header(server: RunningServer, folders: dict[str, Path]) -> None:
    server.predict("ordered", "a", sequence="by-handler")
    last = server.predict("ordered", "end", sequence="by-handler")
    assert (last.text, last.headers["ts_request_sequence_end"]) == ("a,end", "by-handler")
    wait_until_ended(folders["ordered"], "by-handler", "ended")
    assert server.predict("ordered", "b", sequence="by-handler").text == "b"


def test_the_client_ends_a_sequence_with_its_last_request(server: RunningServer, folders: dict[str, Path]) -> None:
    server.predict("ordered", "a", sequence="by-client")
    assert server.predict("ordered", "b", sequence="by-client", headers=END).text == "a,b"
    wait_until_ended(folders["ordered"], "by-client", "ended")
    assert server.predict("ordered", "c", sequence="by-client").text == "c"


def test_zero_ends_the_sequence_of_the_stateful_example(server: RunningServer) -> None:
    assert [server.predict("stateful", number, sequence="zero").text for number in ("5", "0", "3")] == ["5", "5", "3"]


def test_an_idle_sequence_expires(server: RunningServer, folders: dict[str, Path]) -> None:
    server.predict("idle", "a", sequence="s")
    wait_until_ended(folders["idle"], "s", "idle")
    refused = server.predict("idle", "b", sequence="s")
    assert_refused(refused, 410, "sequence_expired")
    assert refused.json()["type"] == "SequenceExpiredException"
    assert server.predict("idle", "c", sequence="s", headers=START).text == "c"
    assert server.predict("idle", "d", sequence="s").text == "c,d"


def test_a_sequence_lives_no_longer_than_its_limit(server: RunningServer, folders: dict[str, Path]) -> None:
    server.predict("lifetime", "a", sequence="s")
    wait_until_ended(folders["lifetime"], "s", "timeout")
    assert_refused(server.predict("lifetime", "b", sequence="s"), 410, "sequence_expired")
    assert server.predict("lifetime", "c", sequence="s", headers=START).text == "c"


def test_a_start_marker_that_comes_when_a_busy_sequence_has_lived_its_time_opens_it_anew(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["lifetime"])
    running = send("lifetime", "wait gate", sequence="busy")
    gate.wait_until_reached()
    time.sleep(LIFETIME)
    anew = send("lifetime", "anew", sequence="busy", headers=START)
    eventually(lambda: server.pending("lifetime") == 1, "the request with the start marker waits")
    gate.open()
    assert [running.result().text, anew.result().text] == ["wait gate", "anew"]


def test_an_expired_sequence_may_be_configured_to_restart(server: RunningServer, folders: dict[str, Path]) -> None:
    server.predict("lenient", "a", sequence="s")
    wait_until_ended(folders["lenient"], "s", "idle")
    assert server.predict("lenient", "b", sequence="s").text == "b"


# Limits


def test_a_sequence_above_capacity_is_refused_until_another_ends(server: RunningServer) -> None:
    for sequence in ("one", "two"):
        assert server.predict("small", "a", sequence=sequence).status_code == 200
    refused = server.predict("small", "a", sequence="three")
    assert_refused(refused, 503, "sequence_capacity")
    assert int(refused.headers["Retry-After"]) >= 1
    assert server.predict("small", "b", sequence="one").text == "a,b"
    for sequence in ("one", "two"):
        server.predict("small", "end", sequence=sequence)
    assert server.predict("small", "end", sequence="three").text == "end"


def test_a_request_is_refused_where_its_sequence_has_enough_waiting(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["small"])
    running = send("small", "wait gate", sequence="busy")
    gate.wait_until_reached()
    waiting = send("small", "b", sequence="busy")
    eventually(lambda: server.pending("small") == 1, "the second request waits")
    refused = server.predict("small", "c", sequence="busy")
    assert_refused(refused, 503, "sequence_queue_full")
    assert int(refused.headers["Retry-After"]) >= 1
    gate.open()
    assert [running.result().text, waiting.result().text] == ["wait gate", "wait gate,b"]
    assert server.predict("small", "end", sequence="busy").text == "wait gate,b,end"


# Many


async def test_a_thousand_sequences_are_open_at_once_on_one_worker(server: RunningServer) -> None:
    """The idle limit is five minutes, so that none can have waited for another's."""
    url = f"{server.inference}/predictions/thousand"
    connector = aiohttp.TCPConnector(limit=200)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:

        async def step(sequence: int, number: int) -> str:
            headers = {"ts_request_sequence_id": f"seq-{sequence}", "content-type": "text/plain"}
            async with session.post(url, data=str(number), headers=headers) as response:
                return await response.text()

        async def step_of_all(number: int) -> list[str]:
            return await asyncio.gather(*(step(sequence, number + sequence) for sequence in range(1000)))

        assert await step_of_all(1) == [str(1 + sequence) for sequence in range(1000)]
        assert await step_of_all(10) == [str(11 + 2 * sequence) for sequence in range(1000)]
        assert await step_of_all(100) == [str(111 + 3 * sequence) for sequence in range(1000)]
        assert await asyncio.to_thread(server.metric, "ts_open_sequences", model_name="thousand") == 1000
        assert await step(7, 1000) == str(1111 + 3 * 7)
        async with session.post(url, data="1", headers={"ts_request_sequence_id": "one-more"}) as response:
            assert (response.status, response.headers["ts-error-cause"]) == (503, "sequence_capacity")


def test_requests_of_a_sequence_run_in_the_order_of_their_arrival(
    server: RunningServer, folders: dict[str, Path], send: Callable[..., Future[requests.Response]]
) -> None:
    gate = Gate(folders["ordered"])
    answers = [send("ordered", "wait gate", sequence="queue")]
    gate.wait_until_reached()
    for number in range(20):
        answers.append(send("ordered", str(number), sequence="queue"))
        eventually(lambda: server.pending("ordered") == len(answers) - 1, "the request waits")
    gate.open()
    sent = ["wait gate", *map(str, range(20))]
    assert [answer.result().text.split(",") for answer in answers] == [sent[: n + 1] for n in range(len(sent))]


async def test_concurrent_requests_of_a_sequence_run_one_after_the_other(server: RunningServer) -> None:
    url = f"{server.inference}/predictions/ordered"
    headers = {"ts_request_sequence_id": "crowd", "content-type": "text/plain"}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:

        async def client(name: str) -> list[list[str]]:
            answers = []
            for number in range(25):
                async with session.post(url, data=f"{name}{number}", headers=headers) as response:
                    answers.append((await response.text()).split(","))
            return answers

        answers = [answer for each in await asyncio.gather(*map(client, "abcdefgh")) for answer in each]
    longest = max(answers, key=len)
    assert sorted(map(len, answers)) == list(range(1, 201))
    assert all(answer == longest[: len(answer)] for answer in answers)
    for name in "abcdefgh":
        assert [item for item in longest if item[0] == name] == [f"{name}{number}" for number in range(25)]


# Streams of continuous sequence batching


def test_an_odd_number_streams_ten_further_responses(server: RunningServer) -> None:
    assert server.predict("continuous", "4", sequence="odd").text == "4"
    streamed = server.predict("continuous", "3", sequence="odd")
    assert streamed.headers["transfer-encoding"] == "chunked"
    assert streamed.text.split() == [str(7 + further) for further in range(11)]
    assert server.predict("continuous", "2", sequence="odd").text == "9"


def test_a_request_cancels_the_stream_of_its_own_sequence(server: RunningServer) -> None:
    with server.predict("endless", "3", sequence="cancelled", stream=True) as stream:
        lines = stream.iter_lines()
        assert [next(lines), next(lines)] == [b"3", b"4"]
        assert server.predict("endless", "-1", sequence="cancelled").text == "3"
        first, *_ = list(lines)  # to the end, which the stream has now
        assert first == b"5"
    assert server.predict("endless", "0", sequence="cancelled").text == "3"


def test_a_cancellation_finds_room_in_a_full_batch(
    server: RunningServer, send: Callable[..., Future[requests.Response]]
) -> None:
    with (
        server.predict("endless", "3", sequence="first", stream=True) as first,
        server.predict("endless", "5", sequence="second", stream=True) as second,
    ):
        first_lines, second_lines = first.iter_lines(), second.iter_lines()
        assert [next(first_lines), next(second_lines)] == [b"3", b"5"]
        third = send("endless", "2", sequence="third")
        eventually(lambda: server.pending("endless") == 1, "the third sequence waits for a place")
        assert server.predict("endless", "-1", sequence="first").text == "3"
        assert third.result().text == "2"
        assert server.predict("endless", "-1", sequence="second").text == "5"
        assert [list(first_lines)[:1], list(second_lines)[:1]] == [[b"4"], [b"6"]]
