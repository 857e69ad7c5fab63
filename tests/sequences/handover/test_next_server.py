"""A server that stops leaves its sequences in memory to the next one that starts with its data folder."""

import signal
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, RunningServer, eventually, model_folder
from tests.proxies import HAProxy
from tests.sequences.handover.test_scaled_and_restarted import CONFIG, COUNTING, MIGRATING, TWO, VERSIONED, versioned

from torchserve_py.client import Answer, Client

QUICKLY = {"drain_timeout": 0}
#: Longer than a test waits for a server that stops.
PATIENTLY = {"drain_timeout": 3600}


def restart(server: RunningServer) -> None:
    server.terminate()
    start_again(server)


def start_again(server: RunningServer) -> None:
    starts = server.log().count("Model server started.")
    server.launch()
    eventually(lambda: server.log().count("Model server started.") > starts, "it was restarted")


def left(server: RunningServer) -> list[Path]:
    return [each for each in (server.directory / "data" / "handover").rglob("*") if each.is_file()]


def count(server: RunningServer, sequence: str, **headers: str) -> int | tuple[int, str]:
    answer = server.predict("counting", sequence=sequence, headers=headers)
    if answer.status_code != 200:
        return answer.status_code, answer.headers.get("ts-error-cause", "")
    return int(answer.text.partition(" ")[0])


def numbered(number: int, sequence: str) -> dict[str, str]:
    return {"ts_request_step": str(number), "ts_request_sequence_token": f"t-{sequence}"}


def test_sequences_go_on_with_the_next_server_and_its_own_next_one(tmp_path: Path) -> None:
    with RunningServer({"counting": model_folder(tmp_path, "counting", COUNTING, CONFIG + TWO)}, QUICKLY) as server:
        server.wait_ready()
        plain, named = [f"p{number}" for number in range(20)], [f"n{number}" for number in range(20)]
        for step in (1, 2):
            assert {count(server, each) for each in plain} == {step}
            assert {count(server, each, **numbered(step, each)) for each in named} == {step}
            if step == 1:
                restart(server)
                files = left(server)
                assert len(files) == 40
                assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
        eventually(lambda: not left(server), "the files are removed")
        assert server.metric("ts_sequences_moved_total", model_name="counting") == 40
        restart(server)
        # What was applied is recognized, and given the same answer; a new id begins another sequence.
        assert count(server, "n0", **numbered(2, "n0")) == 2
        assert count(server, "n0", **numbered(2, "n0")) == 2
        assert count(server, "n0", **numbered(4, "n0")) == (409, "step_gap")
        assert count(server, "n0", **numbered(3, "n0")) == 3
        assert count(server, "new") == 1
        assert count(server, "p1", ts_request_sequence_start="true") == 1
        eventually(lambda: len(left(server)) == 38, "the files of two are removed")


def test_a_sequence_goes_on_with_the_version_that_it_began_with_or_one_that_migrates_it(tmp_path: Path) -> None:
    models = {"said": versioned(tmp_path, "1", VERSIONED), "also": versioned(tmp_path, "2", MIGRATING)}
    with RunningServer({"said": models["said"]}, QUICKLY) as server:
        server.wait_ready()
        assert [server.predict("said", sequence=name).text for name in "ab"] == ["1 1:", "1 1:"]
        assert server.register(models["also"], model_name="said").ok
        assert server.predict("said", sequence="a").text == "2 1:"
        server.command += ["said=" + str(models["also"])]
        restart(server)
        server.wait_ready()
        assert server.predict("said", sequence="a").text == "3 1:"
        server.command.remove("said=" + str(models["said"]))
        restart(server)
        server.wait_ready()
        assert [server.predict("said", sequence=name).text for name in "ab"] == ["4 2:1", "2 2:1"]


NOT_ENCODABLE = COUNTING.replace('{"count": 0}', '{"count": 0, "of": object()}')


def test_a_sequence_whose_state_cannot_be_left_or_read_is_lost(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "counting", NOT_ENCODABLE, CONFIG)
    with RunningServer({"counting": folder}, QUICKLY) as server:
        server.wait_ready()
        assert count(server, "a", **numbered(1, "a")) == 1
        restart(server)
        assert "cannot be handed over" in server.log()
        assert "could not be left to another server within 8 s: 1\n" in server.log()
        assert count(server, "a", **numbered(2, "a")) == (410, "sequence_unknown")
        (folder / "handler.py").write_text(COUNTING)
        restart(server)
        assert [count(server, each) for each in "bcd"] == [1, 1, 1]
        restart(server)
        damaged, *_ = left(server)
        damaged.write_bytes(damaged.read_bytes()[:-1])
        server.wait_ready()
        answers = [count(server, each) for each in "bcd"]
        assert sorted(answers, key=str) == [(410, "sequence_lost"), 2, 2]
        assert "its checksum is wrong" in server.log()
        eventually(lambda: not left(server), "the files are removed")


def test_left_sequences_go_with_the_last_version_of_their_model(tmp_path: Path) -> None:
    models = {"said": versioned(tmp_path, "1", VERSIONED), "also": versioned(tmp_path, "2", MIGRATING)}
    with RunningServer({"said": models["said"]}, QUICKLY) as server:
        server.wait_ready()
        assert [server.predict("said", sequence=name).text for name in "abc"] == ["1 1:"] * 3
        restart(server)
        server.wait_ready()
        assert server.register(models["also"], model_name="said").ok
        url = f"{server.management}/models/said"
        assert requests.put(f"{url}/2/set-default", timeout=DEADLINE).ok
        assert requests.delete(f"{url}/1", timeout=DEADLINE).ok
        assert server.predict("said", sequence="a").text == "2 2:1"
        eventually(lambda: len(left(server)) == 2, "the file of the one is removed")
        assert requests.delete(url, timeout=DEADLINE).ok
        eventually(lambda: left(server) == [], "they are removed")
        assert server.register(models["said"], model_name="said").ok
        assert [server.predict("said", sequence=name).text for name in "bc"] == ["1 1:", "1 1:"]


def test_the_sequences_of_a_server_go_on_at_another_one_of_its_fleet(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "counting", COUNTING, CONFIG + TWO)
    settings = {**PATIENTLY, "fleet_state": tmp_path / "fleet", "fleet_name": "shop"}
    servers = [RunningServer({"counting": folder}, settings) for _ in range(2)]
    with servers[0] as first:
        first.wait_ready()
        with servers[1] as second:
            second.wait_ready()
            names = [f"s{number}" for number in range(20)]
            for step in (1, 2):
                assert {count(first, each, **numbered(step, each)) for each in names} == {step}
            assert first.terminate() == 0
            files = [each for each in (tmp_path / "fleet" / "shop" / "handover").rglob("*") if each.is_file()]
            assert len(files) == 20 + 1
            assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
            assert {count(second, each, **numbered(3, each)) for each in names} == {3}
            assert count(second, "s0", **numbered(3, "s0")) == 3
            start_again(first)
            first.wait_ready()
            assert second.terminate() == 0
            assert {count(first, each, **numbered(4, each)) for each in names} == {4}
            assert left(first) == left(second) == []


def test_a_server_that_still_serves_during_its_delay_gives_what_another_one_is_asked_for(tmp_path: Path) -> None:
    folder = model_folder(tmp_path, "counting", COUNTING, CONFIG)
    settings = {**PATIENTLY, "fleet_state": tmp_path / "fleet", "drain_delay": 3600}
    servers = [RunningServer({"counting": folder}, settings) for _ in range(2)]
    with servers[0] as first:
        first.wait_ready()
        with servers[1] as second:
            second.wait_ready()
            assert {count(first, each, **numbered(1, each)) for each in "ab"} == {1}
            first.launcher.send_signal(signal.SIGTERM)
            ready = f"{first.inference}/ready"
            eventually(lambda: requests.get(ready, timeout=DEADLINE).status_code == 503, "it is about to stop")
            assert count(second, "a", **numbered(2, "a")) == 2
            assert count(first, "b", **numbered(2, "b")) == 2
            assert count(first, "a", **numbered(3, "a")) == 3


def test_a_live_session_in_memory_goes_on_with_the_next_server(tmp_path: Path) -> None:
    with RunningServer({"counting": model_folder(tmp_path, "counting", COUNTING, CONFIG)}, QUICKLY) as server:
        server.wait_ready()
        with Client(server.inference, patience=DEADLINE) as client, client.session("counting") as session:
            assert [count_in(session.step(b"")) for _ in range(3)] == [1, 2, 3]
            restart(server)
            assert [count_in(session.step(b"")) for _ in range(2)] == [4, 5]
            with client.session("counting", resume=session.resume_token) as again:
                assert again.last_step == 5
                assert count_in(again.step(b"")) == 6


@pytest.mark.parametrize("where", ["folder", "redis"])
def test_a_live_session_in_memory_goes_on_at_another_server_of_its_fleet(
    tmp_path: Path, request: pytest.FixtureRequest, where: str
) -> None:
    folder = model_folder(tmp_path, "counting", COUNTING, CONFIG)
    state = tmp_path / "fleet" if where == "folder" else request.getfixturevalue("redis_server").url
    settings = {**PATIENTLY, "fleet_state": state, "fleet_name": tmp_path.name}
    servers = [RunningServer({"counting": folder}, settings) for _ in range(2)]
    with servers[0], servers[1], HAProxy([each.inference for each in servers]) as proxy:
        proxy.wait_for(2)
        for each in servers:
            each.wait_ready()
        with Client(proxy.url, patience=DEADLINE) as client, client.session("counting") as session:
            for number in range(3):
                assert count_in(session.step(b"")) == 2 * number + 1
                (at,) = [each for each in servers if each.metric("ts_open_sequences", model_name="counting")]
                restart(at)
                assert count_in(session.step(b"")) == 2 * number + 2
                proxy.wait_for(2)


def count_in(answer: Answer) -> int:
    return int(answer.body.partition(b" ")[0])
