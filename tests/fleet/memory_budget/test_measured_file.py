"""What was measured of models is known after a restart."""

import json
from pathlib import Path

from tests.e2e import orders
from tests.e2e.running_server import RunningServer, eventually, model_folder

LARGE = orders.HANDLER.replace(
    "        self.directory =", '        self.weights = bytes(b"w") * 70_000_000\n        self.directory ='
)
ON_DEMAND = "minWorkers: 0\nloading: on_demand\n"


def restart(server: RunningServer) -> None:
    server.terminate()
    server.output.write_text("")
    server.start()
    server.wait_ready()


def test_what_a_model_took_is_known_after_a_restart(tmp_path: Path) -> None:
    models = {name: model_folder(tmp_path, name, LARGE, ON_DEMAND) for name in "ab"}
    with RunningServer(models, {"memory_budget": "150MB"}) as server:
        file = server.directory / "logs" / "config" / "measured.json"
        server.command = [each for each in server.command if each != "--ncs"]
        restart(server)
        for name in "ab":
            assert server.predict(name).status_code == 200
        wanted = {"a 1.0", "b 1.0"}
        eventually(lambda: file.exists() and json.loads(file.read_text())["versions"].keys() == wanted, "it is written")
        measured = json.loads(file.read_text())["versions"]["a 1.0"]
        assert measured["peaks"]["host"] > 70_000_000
        assert measured["load_seconds"] > 0

        # Nothing was loaded by this server, and it knows at once how long that takes.
        measured["load_seconds"] = 7.5
        server.terminate()
        file.write_text(json.dumps({"versions": {"a 1.0": measured}}))
        server.output.write_text("")
        server.start()
        server.wait_ready()
        refused = server.predict("a", headers={"ts_request_timeout": "1000"})
        assert (refused.status_code, refused.headers["ts-error-cause"]) == (503, "not_loaded")
        assert int(refused.headers["retry-after"]) == 8
        eventually(lambda: server.predict("a").status_code == 200, "it is loaded for who comes again")

        # A damaged file is told of, and changes nothing else.
        server.terminate()
        file.write_text("{")
        server.output.write_text("")
        server.start()
        server.wait_ready()
        assert "What models took before is unknown" in server.log()
        assert server.predict("b").status_code == 200
