"""Stored sequences are forked, go back and move between servers while steps run, with a file and with Redis."""

import itertools
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually
from tests.e2e.sequence_store import SharedStore, shared_store

# Each step adds a word to the log of its sequence, and answers with all of them; "wait" waits for the gate first.
HANDLER = (
    WAITING
    + """
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [self.step(context, index) for index in range(len(data))]

    def step(self, context, index):
        word = str(context.body(index))
        if word == "wait":
            wait_for(os.environ["GATE"])
        context.state[index] = [*context.state.get(index, []), word]
        context.state.append(index, word)
        return " ".join(context.state[index])

    def rebuild(self, states, entries):
        return [[*(state or []), *words] for state, words in zip(states, entries)]
"""
)


class Servers:
    """Servers that share a store, and what operators do with the sequence of it."""

    def __init__(self, directory: Path, store: SharedStore, stack: ExitStack) -> None:
        self.gate = Gate(directory)
        self._stack = stack
        self._folder = store.model(HANDLER, response_timeout=60, checkpoint_every=0)

    def start(self, **properties: Any) -> RunningServer:
        environment = {"GATE": str(self.gate.path)}
        server = RunningServer({"tally": self._folder}, properties, environment)
        self._stack.enter_context(server).wait_ready()
        return server


@pytest.fixture(params=["file", "redis"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Servers]:
    with ExitStack() as stack:
        yield Servers(tmp_path, stack.enter_context(shared_store(request.param, tmp_path)), stack)


def call(server: RunningServer, method: str, path: str, **more: Any) -> requests.Response:
    """Do something with a sequence of the model, at the management API."""
    return requests.request(method, f"{server.management}/sequences/tally/{path}", timeout=DEADLINE, **more)


def step(server: RunningServer, word: str, sequence: str = "s", **headers: str) -> requests.Response:
    return server.predict("tally", word, sequence=sequence, headers=headers)


def test_a_fork_and_its_original_go_on_at_any_server(servers: Servers) -> None:
    one, other = servers.start(), servers.start()
    assert [step(one, word).text for word in "abc"] == ["a", "a b", "a b c"]
    forked = call(other, "POST", "s/fork", params={"as": "f", "step": 2})
    assert forked.status_code == 200, forked.text
    assert step(one, "x", "f").text == "a b x"
    assert step(other, "d").text == "a b c d"
    answer = step(other, "y", "f")
    assert (answer.text, answer.headers["ts_sequence_token"]) == ("a b x y", forked.json()["token"])
    made_up = call(one, "POST", "s/fork").json()["sequenceId"]
    assert step(other, "z", made_up).text == "a b c d z"
    again = call(one, "POST", "s/fork", params={"as": "f"})
    assert (again.status_code, "'f'" in again.text) == (409, True)
    assert one.metric("ts_sequences_forked_total", model_name="tally") == 1


def test_a_sequence_goes_back_whichever_server_holds_it(servers: Servers) -> None:
    holder, other = servers.start(), servers.start()
    token = [step(holder, word) for word in "abc"][-1].headers["ts_sequence_token"]
    shown = [call(each, "GET", "s").json() for each in (holder, other)]
    assert [each["heldBy"] for each in shown] == ["this server", "another server"]
    assert shown[0]["stepsWithState"] == [{"from": 1, "to": 3}]
    back = call(other, "POST", "s/rewind", params={"step": 1})
    assert (back.status_code, back.json()["lastStep"]) == (200, 1)
    assert step(holder, "x").text == "a x"
    assert step(other, "y", ts_request_sequence_token=back.json()["token"], ts_request_step="3").text == "a x y"
    late = step(holder, "c", ts_request_sequence_token=token, ts_request_step="3")
    assert (late.status_code, late.headers["ts-error-cause"]) == (410, "sequence_ended")
    gone = call(other, "POST", "s/rewind", params={"step": 4})
    assert gone.status_code == 409
    assert "the store has its state after steps 1 to 3" in gone.json()["message"]
    assert [call(each, "POST", "s/rewind", params={"step": 2}).status_code for each in (holder, other)] == [200, 200]
    assert step(other, "z").text == "a x z"


def test_a_step_that_runs_meanwhile_does_not_count(servers: Servers) -> None:
    holder, other = servers.start(), servers.start()
    assert step(holder, "a").text == "a"
    told: list[requests.Response] = []
    waiting = threading.Thread(target=lambda: told.append(step(holder, "wait", ts_request_id="w")))
    waiting.start()
    servers.gate.wait_until_reached()
    assert call(other, "POST", "s/rewind", params={"step": 1}).status_code == 200
    servers.gate.open()
    waiting.join(DEADLINE)
    assert (told[0].status_code, told[0].headers["ts-error-cause"]) == (409, "sequence_moved")
    assert step(holder, "wait", ts_request_id="w").text == "a wait"
    assert step(other, "b").text == "a wait b"


def test_rewinds_among_steps_of_many_clients_leave_one_history(servers: Servers) -> None:
    both = servers.start(), servers.start()
    chains: dict[str, list[list[str]]] = defaultdict(list)
    numbers, is_over = itertools.count(), threading.Event()
    first = step(both[0], "first")
    chains[first.headers["ts_sequence_token"]].append(["first"])

    def send(server: RunningServer) -> None:
        while not is_over.is_set():
            answer = step(server, f"w{next(numbers)}")
            assert answer.status_code in {200, 409, 503}, answer.text
            if answer.status_code == 200:
                chains[answer.headers["ts_sequence_token"]].append(answer.text.split())

    clients = [threading.Thread(target=send, args=(server,)) for server in both * 2]
    for each in clients:
        each.start()
    chance, tokens = random.Random(1), list(chains)
    went_back = {}
    try:
        for _ in range(8):
            reached = sum(map(len, chains.values())) + 5
            eventually(lambda reached=reached: sum(map(len, chains.values())) >= reached, "steps are applied")
            server = chance.choice(both)
            last = call(server, "GET", "s").json()["lastStep"]
            answer = call(server, "POST", "s/rewind", params={"step": max(1, last - chance.randrange(4))})
            assert answer.status_code in {200, 409}, answer.text
            if answer.status_code == 200:
                tokens.append(answer.json()["token"])
                went_back[tokens[-1]] = answer.json()["lastStep"]
    finally:
        is_over.set()
        for each in clients:
            each.join(DEADLINE)
    assert len(went_back) > 3
    before: list[str] = []
    for token in tokens:
        kept = before[: went_back.get(token, 0)]
        longest = max(chains[token], key=len, default=kept)
        assert longest[: len(kept)] == kept
        assert all(chain == longest[: len(chain)] for chain in chains[token])
        assert len({len(chain) for chain in chains[token]}) == len(chains[token])
        before = longest


def test_a_server_killed_while_it_rewinds_leaves_a_sound_sequence(servers: Servers) -> None:
    holder, other = servers.start(), servers.start()
    words = [f"w{number}" for number in range(1, 20)]
    for word in words:
        step(holder, word)

    def go_back() -> None:
        for number in itertools.count():
            try:
                call(other, "POST", "s/rewind", params={"step": 18 - number % 3})
            except requests.ConnectionError:
                return

    working = threading.Thread(target=go_back)
    working.start()
    eventually(lambda: call(holder, "GET", "s").json()["lastStep"] < 19, "it went back")
    other.server.kill()
    working.join(DEADLINE)
    last = call(holder, "GET", "s").json()["lastStep"]
    assert 1 <= last <= 18
    assert step(holder, "x").text.split() == [*words[:last], "x"]
    assert call(holder, "POST", "s/rewind", params={"step": last}).status_code == 200
    assert step(holder, "y").text.split() == [*words[:last], "y"]


def test_an_export_goes_on_in_a_store_of_the_other_kind(tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = []
        for kind in ("file", "redis"):
            directory = tmp_path / kind
            directory.mkdir()
            store = stack.enter_context(shared_store(kind, directory))
            running.append(Servers(directory, store, stack).start(max_request_size=100_000))
        for here, there in (running, running[::-1]):
            sequence = f"to {there.management}"
            name = requests.utils.quote(sequence, safe="")
            assert [step(here, word, sequence, ts_request_id=word).text for word in "ab"] == ["a", "a b"]
            token = step(here, "c", sequence, ts_request_id="c").headers["ts_sequence_token"]
            file = call(here, "GET", f"{name}/export").content
            damaged = bytearray(file)
            damaged[len(file) // 2] ^= 1
            for content, told in (
                (b"", "begins with"),
                (file[:-5], "ends too early"),
                (bytes(damaged), "checksum of a sequence is wrong"),
            ):
                refused = call(there, "PUT", f"{name}/import", data=content)
                assert (refused.status_code, told in refused.text) == (400, True), refused.text
            assert call(there, "PUT", "other/import", data=file).status_code == 400
            large = call(there, "PUT", f"{name}/import", data=file + bytes(200_000))
            assert large.status_code == 413
            assert call(there, "GET", name).status_code == 404
            assert call(there, "PUT", f"{name}/import", data=file).json()["token"] == token
            assert call(there, "PUT", f"{name}/import", data=file).status_code == 409
            assert step(there, "c", sequence, ts_request_id="c").text == "a b c"
            assert step(there, "d", sequence, ts_request_sequence_token=token).text == "a b c d"
            new = call(there, "PUT", f"{name}/import", data=file, params={"replace": "true"}).json()["token"]
            late = step(there, "e", sequence, ts_request_sequence_token=token)
            assert (late.status_code, late.headers["ts-error-cause"]) == (410, "sequence_ended")
            assert step(there, "x", sequence, ts_request_sequence_token=new).text == "a b c x"
            assert step(here, "y", sequence).text == "a b c y"
