"""Several functions in one file that call each other: `torchserve-py serve`, registrations, changes, the end."""

import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
from tests.e2e.running_server import DEADLINE, eventually
from tests.e2e.serve_command import ServeCommand, run_curl

SEARCH = '''\
import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from ts import CallFailed, serve


@serve(batch_size=8, max_batch_delay=200)
def embed(texts: list[str]) -> list[int]:
    """Tells how many requests are in the batch."""
    if "boom" in texts:
        raise ValueError("no such word")
    return [len(texts)] * len(texts)


@serve
async def search(query: str) -> int:
    word, _, number = query.partition(" ")
    if word == "again":
        return await again(int(number))
    if word == "wrong":
        return await embed(5)
    if word == "late":
        Path("late").touch()
        await asyncio.sleep(1)
    try:
        return await embed(word)
    except CallFailed as error:
        if number == "caught":
            return error.status
        raise


@serve
async def again(number: int) -> int:
    """Calls back until the number is 0; below that it waits."""
    if number < 0:
        try:
            await asyncio.sleep(60)
        finally:
            Path("ended").touch()
    return 0 if number == 0 else await search(f"again {number - 1}")


@serve
def spell(word: str) -> Iterator[str]:
    yield from word


@serve
class Shout:
    def setup(self, device: str) -> None:
        self.mark = "!"

    def predict(self, text: str) -> str:
        return text.upper() + self.mark


@serve
async def loud(word: str) -> AsyncIterator[str]:
    async for letter in spell(word):
        yield await Shout().predict(letter)
'''


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeCommand]:
    folder = tmp_path_factory.mktemp("search")
    (folder / "search.py").write_text(SEARCH)
    (folder / "config.properties").write_text("enable_model_api=true\n")
    with ServeCommand(folder, "search.py", "--watch") as command:
        yield command.wait_until_serving()


def ask(command: ServeCommand, query: str, limit: float = DEADLINE) -> requests.Response:
    return requests.post(f"{command.base}/search", query, headers={"content-type": "text/plain"}, timeout=limit)


def test_each_function_is_a_model_with_a_curl_and_a_place_in_the_description(command: ServeCommand) -> None:
    assert [run_curl(each) for each in command.curls()] == ["1", "1", "0", "hello", "HELLO!", "H!E!L!L!O!"]
    described = requests.get(f"{command.base}/openapi.json", timeout=DEADLINE).json()
    assert {"/embed", "/search", "/again", "/spell", "/Shout", "/loud"} == described["paths"].keys()


def test_the_calls_of_several_requests_share_a_batch(command: ServeCommand) -> None:
    def largest() -> int:
        with ThreadPoolExecutor(8) as clients:
            return max(clients.map(lambda _: ask(command, "hello").json(), range(8)))

    eventually(lambda: largest() == 8, "eight calls are one batch")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("boom", "CallFailed: embed: ValueError: no such word"),
        ("wrong", "CallFailed: embed: texts: Input should be a valid string, given '5'"),
        ("again 8", "a request may lead to 16 calls that lie within each other, and not to more"),
    ],
)
def test_a_call_that_fails_is_a_failure_of_the_caller(command: ServeCommand, query: str, told: str) -> None:
    answer = ask(command, query)
    assert (answer.status_code, answer.headers["ts-error-cause"]) == (500, "handler_error")
    assert told in answer.json()["detail"]


def test_a_caller_may_go_on_after_a_failure_and_functions_may_call_back(command: ServeCommand) -> None:
    assert ask(command, "boom caught").json() == 500
    assert ask(command, "again 7").json() == 0


def test_functions_that_call_each_other_do_not_wait_in_a_circle(command: ServeCommand) -> None:
    with ThreadPoolExecutor(80) as clients:  # more than a worker has calls of clients' requests open
        answers = [*clients.map(lambda _: ask(command, "again 2", 60), range(80))]
    assert {each.json() for each in answers} == {0}


def test_a_call_ends_with_the_request_that_makes_it(command: ServeCommand) -> None:
    with pytest.raises(requests.Timeout):
        ask(command, "again -1", 0.5)
    eventually((command.folder / "ended").exists, "the called function is cancelled")


def test_a_registration_chooses_one(command: ServeCommand) -> None:
    management = re.search(r"(http://\S+)/console", command.printed())
    assert management is not None
    models, file = f"{management[1]}/models", command.folder / "search.py"
    refused = requests.post(models, params={"url": str(file)}, timeout=DEADLINE)
    assert refused.status_code == 400, refused.text
    assert "has 6 models: embed, search, again, spell, Shout, loud; choose one, such as search.py:loud" in refused.text
    added = {"url": f"{file}:search", "model_name": "find", "initial_workers": "1"}
    assert requests.post(models, params=added, timeout=DEADLINE).status_code == 200
    assert command.predict("find", "hello").json() == 1
    assert requests.delete(f"{models}/find", timeout=DEADLINE).status_code == 200


def test_a_change_reloads_all_adds_what_is_new_and_ends_what_is_gone(command: ServeCommand) -> None:
    file = command.folder / "search.py"
    begin = SEARCH.index("@serve\nasync def again")
    changed = SEARCH[:begin].replace("[len(texts)]", "[-len(texts)]").replace("raise\n", "return -7\n")
    file.write_text(f"{changed}{SEARCH[begin:].replace('def again', 'def anew')}")
    command.wait_for("again is no longer served: search.py has changed.")
    assert {"embed is reloaded", "search is reloaded", "anew is reloaded"} <= {
        line.partition(" in ")[0] for line in command.printed().splitlines()
    }
    assert [ask(command, each).json() for each in ("hello", "boom")] == [-1, -7]
    assert requests.post(f"{command.base}/again", "0", timeout=DEADLINE).status_code == 404
    file.write_text("def half(:")
    command.wait_for("The previous version is still serving.")
    assert ask(command, "hello").json() == -1


def test_requests_that_were_accepted_may_call_while_the_server_ends(command: ServeCommand) -> None:
    answers: list[requests.Response] = []
    client = threading.Thread(target=lambda: answers.append(ask(command, "late")))
    client.start()
    eventually((command.folder / "late").exists, "the request runs")
    assert command.ended(signal.SIGTERM) == 0
    client.join()
    assert [each.json() for each in answers] == [-1]
