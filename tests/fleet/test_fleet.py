"""Servers of a fleet: what an operator changes on one of them reaches all, and those that start later."""

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from tests.e2e.running_server import DEADLINE, HANDLERS, RunningServer, eventually
from tests.redis_server import RedisServer

ECHO = HANDLERS / "echo"


@pytest.fixture(params=["folder", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where the fleet keeps its state."""
    if request.param == "folder":
        yield str(tmp_path / "fleet")
        return
    with RedisServer(tmp_path) as redis:
        yield redis.url


def served(server: RunningServer) -> dict[str, dict[str, tuple[int, bool]]]:
    """By name and version, how many workers there are to be, and whether the version is the default one."""
    found: dict[str, dict[str, tuple[int, bool]]] = {}
    for each in requests.get(f"{server.management}/models", timeout=DEADLINE).json()["models"]:
        url = f"{server.management}/models/{each['modelName']}"
        default, every = (requests.get(at, timeout=DEADLINE) for at in (url, f"{url}/all"))
        if default.ok and every.ok:  # else it has gone meanwhile
            name = default.json()[0]["modelVersion"]
            versions = {v["modelVersion"]: (v["minWorkers"], v["modelVersion"] == name) for v in every.json()}
            found[each["modelName"]] = versions
    return found


def call(method: str, server: RunningServer, path: str) -> str:
    answer = requests.request(method, f"{server.management}{path}", timeout=DEADLINE)
    assert answer.ok, answer.text
    return answer.text


def follows(server: RunningServer, wanted: dict[str, dict[str, tuple[int, bool]]]) -> None:
    eventually(lambda: served(server) == wanted, f"the server serves {wanted}")


def test_what_is_changed_on_one_server_reaches_all(place: str, tmp_path: Path) -> None:
    properties = {"fleet_state": place}
    with ExitStack() as stack:
        first = stack.enter_context(RunningServer({"one": ECHO}, properties))
        first.wait_ready()
        second = stack.enter_context(RunningServer({}, properties))
        follows(second, {"one": {"1.0": (1, True)}})

        call("POST", second, f"/models?url={ECHO}&model_name=two&initial_workers=1&synchronous=true")
        both = {"one": {"1.0": (1, True)}, "two": {"1.0": (1, True)}}
        follows(first, both)
        eventually(lambda: first.predict("two", "hi").text == "hi", "the other server answers")

        call("PUT", first, "/models/two?min_worker=2&max_worker=2")
        both["two"]["1.0"] = (2, True)
        follows(second, both)

        call("DELETE", first, "/models/one/1.0")
        del both["one"]
        follows(second, both)

        # A server that starts later has it all, whatever it is configured to load.
        third = stack.enter_context(RunningServer({"one": ECHO}, properties))
        assert served(third) == both
        assert "The fleet says which models are served" in third.log()

        # Everybody leaves; the fleet is what it was.
        for server in (first, second, third):
            server.terminate()
        again = stack.enter_context(RunningServer({"one": ECHO}, properties))
        assert served(again) == both


def test_the_shares_of_versions_reach_all(tmp_path: Path) -> None:
    properties = {"fleet_state": tmp_path / "fleet"}
    with RunningServer({"one": ECHO}, properties) as first, RunningServer({}, properties) as second:
        follows(second, {"one": {"1.0": (1, True)}})
        url = f"{first.management}/models/one/traffic"
        assert requests.put(url, json={"weights": {"1.0": 100}}, timeout=DEADLINE).ok
        other = f"{second.management}/models/one/traffic"

        def weights() -> dict[str, int]:
            told: dict[str, int] = requests.get(other, timeout=DEADLINE).json()["weights"]
            return told

        eventually(lambda: weights() == {"1.0": 100}, "the other server has the weights")
        requests.delete(url, timeout=DEADLINE)
        eventually(lambda: weights() == {}, "the other server has none")


def test_a_server_that_cannot_load_a_model_takes_it_from_nobody(tmp_path: Path) -> None:
    """Each server has a model store of its own here, and one lacks the archive at first."""
    properties = {"fleet_state": tmp_path / "fleet"}
    with RunningServer({}, properties) as first, RunningServer({}, properties) as second:
        shutil.copytree(ECHO, first.model_store / "late")
        call("POST", first, "/models?url=late&initial_workers=1&synchronous=true")
        eventually(lambda: "does not follow its fleet in model late" in second.log(), "the second server says why")
        answer = second.predict("late", "hi")
        assert answer.status_code == 503
        assert answer.headers["ts-error-cause"] == "not_loaded"
        assert "is not loaded on this server" in answer.json()["message"]
        assert second.predict("unknown", "hi").status_code == 404
        ready = requests.get(f"{second.inference}/ready", timeout=DEADLINE)
        assert ready.status_code == 503
        assert 'Model "late" (version 1.0), which the fleet serves, could not be loaded' in ready.json()["reasons"][0]
        assert second.metric("ts_fleet_failures") == 1
        assert requests.get(f"{first.inference}/ready", timeout=DEADLINE).status_code == 200
        call("POST", first, f"/models?url={ECHO}&model_name=two&initial_workers=1&synchronous=true")
        follows(second, {"two": {"1.0": (1, True)}})
        assert sorted(served(first)) == ["late", "two"]
        shutil.copytree(ECHO, second.model_store / "late")
        eventually(lambda: sorted(served(second)) == ["late", "two"], "the second server has tried again")
        eventually(lambda: requests.get(f"{second.inference}/ready", timeout=DEADLINE).ok, "the second server is ready")
        assert second.metric("ts_fleet_failures") == 0


def test_a_damaged_state_stops_the_start_of_a_server(tmp_path: Path) -> None:
    (tmp_path / "state-000000000001.json").write_text("{")
    server = RunningServer({"one": ECHO}, {"fleet_state": tmp_path})
    server.launch()
    try:
        assert server.process is not None
        assert server.process.wait(DEADLINE) == 1
        assert "state-000000000001.json is no state of a fleet" in server.log()
    finally:
        server.kill_everything()


def test_a_change_that_the_fleet_cannot_be_told_of_is_told_to_its_caller(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    with RunningServer({"one": ECHO}, {"fleet_state": folder}) as server:
        server.wait_ready()
        eventually(lambda: list(folder.glob("state-*")), "the first state")
        shutil.rmtree(folder)
        folder.touch()
        answer = requests.put(f"{server.management}/models/one?min_worker=2&max_worker=2", timeout=DEADLINE)
        assert answer.status_code == 503
        assert answer.headers["ts-error-cause"] == "fleet_not_told"
        assert str(folder) in answer.json()["message"]
        assert server.predict("one", "hi").text == "hi"
        assert served(server) == {"one": {"1.0": (1, True)}}  # nothing has changed
        folder.unlink()
        call("PUT", server, "/models/one?min_worker=2&max_worker=2&synchronous=true")
        assert served(server) == {"one": {"1.0": (2, True)}}


def test_requests_move_only_to_versions_that_are_ready(tmp_path: Path) -> None:
    properties = {"fleet_state": tmp_path / "fleet", "fleet_name": "shop"}
    newer = tmp_path / "newer"
    shutil.copytree(ECHO, newer)
    (newer / "MAR-INF").mkdir()
    manifest = {"model": {"modelName": "one", "modelVersion": "2.0", "handler": "echo_handler.py"}}
    (newer / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    with RunningServer({"one": ECHO}, properties) as first, RunningServer({}, properties) as second:
        first.wait_ready()  # what answers nothing yet gives nothing away
        follows(second, {"one": {"1.0": (1, True)}})
        call("POST", first, f"/models?url={newer}&model_name=one&initial_workers=0")
        both = {"1.0": (1, True), "2.0": (0, False)}
        follows(second, {"one": both})
        models = f"{first.management}/models/one"
        traffic = f"{models}/traffic"
        for answer in (
            requests.put(f"{models}/2.0/set-default", timeout=DEADLINE),
            requests.put(traffic, json={"weights": {"1.0": 90, "2.0": 10}}, timeout=DEADLINE),
            requests.put(traffic, json={"canary": {"version": "2.0"}}, timeout=DEADLINE),
        ):
            assert answer.status_code == 409
            assert (
                "Version 2.0 of model one has no ready worker (it has none: scale it first)" in answer.json()["message"]
            )
        assert served(first) == {"one": both}
        call("PUT", first, "/models/one/2.0?min_worker=1&synchronous=true")
        call("PUT", first, "/models/one/2.0/set-default")
        follows(second, {"one": {"1.0": (1, False), "2.0": (1, True)}})
        assert second.predict("one", "hi").text == "hi"
        # TorchServe's way.
        call("PUT", first, "/models/one/1.0?min_worker=0&synchronous=true")
        call("PUT", first, "/models/one/1.0/set-default?force=true")
        assert "go to version 1.0, which has no ready worker, by force" in first.log()
        follows(second, {"one": {"1.0": (0, True), "2.0": (1, False)}})
        assert (tmp_path / "fleet" / "shop").is_dir()


#: Makes the disk with the fleet's folder hang, as a dead NFS server does, once the file `hang` is beside that folder.
DEAD_DISK = """
import os, threading
from pathlib import Path

listed = os.scandir


def scandir(path="."):
    if Path(str(path)).name == "fleet" and Path(str(path)).with_name("hang").exists():
        threading.Event().wait()
    return listed(path)


os.scandir = scandir
"""


def test_a_disk_that_hangs_does_not_keep_the_server(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(DEAD_DISK)
    server = RunningServer({"one": ECHO}, {"fleet_state": tmp_path / "fleet", "drain_timeout": 1})
    server.environment["PYTHONPATH"] = os.pathsep.join((str(hooks), server.environment["PYTHONPATH"]))
    with server, ThreadPoolExecutor(1) as pool:
        server.wait_ready()
        (tmp_path / "hang").touch()
        eventually(lambda: server.metric("ts_fleet_seconds_behind") > 2, "the server cannot follow")
        assert server.predict("one", "hi").text == "hi"
        call = pool.submit(server.scale, "one", 2)
        time.sleep(0.3)  # it waits for the disk by now
        began = time.monotonic()
        assert server.terminate() == 0
        took = time.monotonic() - began
        assert took < 1 + 5, server.log()
        assert call.exception(DEADLINE) is not None or call.result().status_code == 503
