"""What others see of a model while it is unregistered and still answers an accepted request."""

import zipfile
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import requests
from tests.e2e.gate import WAITING, Gate
from tests.e2e.running_server import DEADLINE, RunningServer, eventually

HANDLER = """
def handle(data, context):
    if data is None:
        return None
    wait_for({path!r})
    return ["done"] * len(data)
"""
ENDING = "Version 1.0 is being unregistered: it answers its accepted requests."


def test_a_model_that_still_answers_is_gone_for_all_others(tmp_path: Path) -> None:
    gate, archive = Gate(tmp_path), tmp_path / "slow.mar"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("handler.py", WAITING + HANDLER.format(path=str(gate.path)))
    with RunningServer() as server, ThreadPoolExecutor() as pool:
        models, query = f"{server.management}/models", {"url": archive.as_uri(), "initial_workers": 1}
        assert requests.post(models, params=query, timeout=DEADLINE).status_code == 200
        accepted = pool.submit(server.predict, "slow", "x")
        gate.wait_until_reached()
        client = HTTPConnection(server.management.removeprefix("http://"), timeout=DEADLINE)
        client.request("DELETE", "/models/slow")
        eventually(lambda: requests.get(f"{models}/slow", timeout=DEADLINE).status_code == 404, "it is gone for others")
        client.close()  # it hangs up

        for method, url in (
            ("DELETE", f"{models}/slow"),
            ("GET", f"{models}/slow"),
            ("POST", f"{server.inference}/predictions/slow"),
        ):
            answer = requests.request(method, url, timeout=DEADLINE)
            assert (answer.status_code, answer.json()["message"]) == (404, f"Model not found: slow. {ENDING}")
        taken = requests.post(models, params=query, timeout=DEADLINE)
        assert (taken.status_code, taken.json()["message"]) == (
            409,
            "slow.mar is in the model store until model slow version 1.0 has answered its accepted requests: it is"
            " being unregistered. Register it again after that.",
        )
        folder = server.model_store / "slow"
        folder.mkdir()
        (folder / "handler.py").write_text("def handle(data, context):\n    return data and ['new']\n")
        assert server.register(folder).status_code == 200
        assert server.predict("slow", "x").text == "new"

        gate.open()
        assert accepted.result().text == "done"
        eventually(lambda: not (server.model_store / "slow.mar").exists(), "the download is removed")
        assert requests.delete(f"{models}/slow", timeout=DEADLINE).status_code == 200
        eventually(lambda: requests.post(models, params=query, timeout=DEADLINE).status_code == 200, "the file is free")
        assert server.predict("slow", "x").text == "done"
